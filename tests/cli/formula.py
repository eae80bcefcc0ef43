"""Attention written from its definition, in Python's double precision, on nested lists."""

import math


def attention(query, key, value, scale=None, allowed=lambda b, h, t, s: True, bias=lambda b, h, t, s: 0.0):
    """query [B][H][T][D], key [B][G][S][D], value [B][G][S][E] -> out [B][H][T][E], lse [B][H][T]."""
    group = len(query[0]) // len(key[0])
    out, lse = [], []
    for b, heads in enumerate(query):
        out.append([])
        lse.append([])
        for h, rows in enumerate(heads):
            keys, values = key[b][h // group], value[b][h // group]
            out[b].append([])
            lse[b].append([])
            for t, row in enumerate(rows):
                factor = 1 / math.sqrt(len(row)) if scale is None else scale
                scores = {}
                for s, other in enumerate(keys):
                    score = factor * sum(x * y for x, y in zip(row, other)) + bias(b, h, t, s)
                    if allowed(b, h, t, s) and score != -math.inf:
                        scores[s] = score
                largest = max(scores.values(), default=0.0)
                total = sum(math.exp(score - largest) for score in scores.values())
                columns = range(len(values[0]))
                weighted = [sum(math.exp(score - largest) * values[s][e] for s, score in scores.items()) for e in columns]
                out[b][h].append([x / total if total else 0.0 for x in weighted])
                lse[b][h].append(largest + math.log(total) if total else -math.inf)
    return out, lse


def affine(x, weight, bias):
    """x [L][in], weight [out][in], bias [out] or None."""
    return [
        [sum(a * w for a, w in zip(row, weights)) + (bias[o] if bias else 0.0) for o, weights in enumerate(weight)] for row in x
    ]


def split_heads(x, heads):
    """[L][heads * dim] -> [heads][L][dim]."""
    dim = len(x[0]) // heads
    return [[row[h * dim : (h + 1) * dim] for row in x] for h in range(heads)]


def join_heads(x):
    return [sum((head[t] for head in x), []) for t in range(len(x[0]))]
