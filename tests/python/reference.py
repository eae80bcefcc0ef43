"""Attention and BERT in float64 NumPy, written from the formulas."""

import json
import math
import pathlib

import numpy as np


def attention(
    query,
    key,
    value,
    mask=None,
    causal=False,
    scale=None,
    lengths=None,
    softcap=0.0,
    alibi_slopes=None,
    sink=None,
    score_function=None,
):
    """query [..., H, T, D], key [..., G, S, D], value [..., G, S, E]; H a multiple of G. Rows without a key are 0.

    score_function(scores, batch, head, query, key) over whole arrays; batch items count through all leading dimensions."""
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    if query.ndim >= 3:
        key, value = (_repeat_heads(array, query.shape[-3]) for array in (key, value))
    scores = query @ np.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    allowed = np.ones(scores.shape, bool)
    rows, columns = scores.shape[-2:]
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if score_function is not None:
        batch, heads = scores.shape[:-3], scores.shape[-3]
        items = np.arange(math.prod(batch)).reshape(batch + (1, 1, 1))
        scores = score_function(scores, items, *np.ogrid[:heads, :rows, :columns])
    if alibi_slopes is not None:
        distances = np.abs(np.arange(columns)[None, :] - np.arange(rows)[:, None])
        scores = scores - np.asarray(alibi_slopes, np.float64)[..., None, None] * distances
    if causal:
        allowed &= np.arange(columns)[None, :] <= np.arange(rows)[:, None]
    if lengths is not None:
        lengths = np.asarray(lengths)
        allowed &= np.arange(columns) < lengths.reshape(lengths.shape + (1,) * 3)
    if mask is not None and mask.dtype == bool:
        allowed &= mask
    elif mask is not None:
        scores = scores + np.asarray(mask, np.float64)
    scores = np.where(allowed, scores, -np.inf)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    sinks = -np.inf if sink is None else np.asarray(sink, np.float64)[:, None, None]
    largest = np.maximum(largest, sinks)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(-1, keepdims=True) + np.exp(sinks - np.where(np.isfinite(largest), largest, 0))
    return weights / np.where(total > 0, total, 1) @ value


def _repeat_heads(array, heads):
    return np.repeat(array, heads // array.shape[-3], axis=-3) if array.ndim >= 3 and 0 < array.shape[-3] < heads else array


def tolerance(query, key, value, scale=None):
    """The promised error of f32: max|v| * (2e-6 + 2^-22 * the largest sum of |scale * q_d * k_d|)."""
    query, key, value = (np.abs(np.asarray(array, np.float64)) for array in (query, key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else abs(scale)
    if not query.size or not key.size:
        return 0.0
    largest = factor * query.shape[-1] * query.max() * key.max()  # an upper bound of the largest sum
    return value.max() * (2e-6 + 2.0**-22 * largest)


def assert_close(actual, expected, limit):
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.shape
    assert not np.isnan(actual).any()
    error = np.abs(actual - expected).max(initial=0)
    assert error <= limit, f"error {error:.3g}, limit {limit:.3g}"


def read_safetensors(path):
    """float32 tensors by name."""
    data = pathlib.Path(path).read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + header_size]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors


class Bert:
    """BertModel in float64, one sequence at a time."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: tensor.astype(np.float64) for name, tensor in read_safetensors(folder / "model.safetensors").items()}

    def token_embeddings(self, ids, operands=None):
        """float64 [tokens, hidden size]. `operands`, a list, gets each layer's (query, key, value), [heads, tokens, head size]."""
        weights, config = self.weights, self.config
        hidden = (
            weights["embeddings.word_embeddings.weight"][ids]
            + weights["embeddings.position_embeddings.weight"][: len(ids)]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        hidden = self._norm(hidden, "embeddings.LayerNorm")
        for index in range(config["num_hidden_layers"]):
            layer = f"encoder.layer.{index}."
            query, key, value = (
                self._split(self._linear(hidden, layer + "attention.self." + name)) for name in ("query", "key", "value")
            )
            if operands is not None:
                operands.append((query, key, value))
            context = attention(query, key, value).swapaxes(0, 1).reshape(hidden.shape)
            attended = self._linear(context, layer + "attention.output.dense")
            hidden = self._norm(hidden + attended, layer + "attention.output.LayerNorm")
            inner = self._linear(hidden, layer + "intermediate.dense")
            inner = inner * 0.5 * (1 + _erf(inner / math.sqrt(2)))
            hidden = self._norm(hidden + self._linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
        return hidden

    def embedding(self, ids):
        mean = self.token_embeddings(ids).mean(0)
        return mean / np.linalg.norm(mean)

    def _linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return centred / deviation * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def _split(self, x):
        heads = self.config["num_attention_heads"]
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)


_erf = np.vectorize(math.erf, otypes=[np.float64])
