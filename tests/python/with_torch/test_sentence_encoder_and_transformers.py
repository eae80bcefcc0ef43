"""SentenceEncoder beside transformers' BertModel on the same weights, both in float32: every sentence of the demo."""

import pathlib

import numpy as np
import polyhead
import pytest
import reference
import torch

transformers = pytest.importorskip("transformers")

sentences = pathlib.Path(__file__).parents[3] / "examples" / "sentences.txt"
texts = [line for line in sentences.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
batch_size = 32


@pytest.fixture(scope="module")
def encoder():
    return polyhead.SentenceEncoder()


@pytest.fixture(scope="module")
def model(encoder):
    return transformers.BertModel.from_pretrained(encoder.path, attn_implementation="sdpa", dtype=torch.float32).eval()


def token_embeddings(model, ids, size):
    """PyTorch's, in padded batches of `size` texts, in the order given."""
    result = []
    for start in range(0, len(ids), size):
        batch = ids[start : start + size]
        padded = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
        mask = torch.zeros_like(padded)
        for index, row in enumerate(batch):
            padded[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        with torch.inference_mode():
            states = model(input_ids=padded, attention_mask=mask).last_hidden_state.numpy()
        result += [state[: len(row)] for state, row in zip(states, batch)]
    return result


@pytest.mark.parametrize("size", [1, batch_size])
def test_every_sentence(encoder, model, size):
    assert len(texts) > 250
    expected = token_embeddings(model, encoder.tokenize(texts), size)
    tokens = encoder.encode(texts, batch_size=size, as_token_embeddings=True)
    embeddings = encoder.encode(texts, batch_size=size).astype(np.float64)
    for text, theirs, ours, embedding in zip(texts, expected, tokens, embeddings):
        reference.assert_close(ours, theirs.astype(np.float64), 2e-5)
        mean = theirs.astype(np.float64).mean(0)
        assert embedding @ mean / np.linalg.norm(mean) / np.linalg.norm(embedding) > 0.999999, text
