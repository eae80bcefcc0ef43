#!/usr/bin/env python3
"""How exact caches of few bits would be on a real model's keys and values: bench/cache_bits.py FOLDER

FOLDER is what bench/real_operands.py writes. Keys and values are rounded much as a KvCache of integers rounds them: means of each
sequence and head taken off, channels scaled, then a scale (and where said an offset) for each token and head, or for each
group of so many elements of it. Prints for each layer the error of attention's result over its size, both root mean square,
in percent. Needs numpy. Exit status: 0 written, 2 the folder lacks something.
"""

import argparse
import pathlib
import sys

import numpy as np


def by_scale(rows, most, group):
    grouped = rows.reshape(*rows.shape[:-1], -1, group)
    scale = np.abs(grouped).max(-1, keepdims=True) / most
    scale[scale == 0] = 1
    return (np.rint(grouped / scale) * scale).reshape(rows.shape)


def by_scale_and_offset(rows, steps, group):
    grouped = rows.reshape(*rows.shape[:-1], -1, group)
    least = grouped.min(-1, keepdims=True)
    scale = (grouped.max(-1, keepdims=True) - least) / steps
    scale[scale == 0] = 1
    return (np.rint((grouped - least) / scale) * scale + least).reshape(rows.shape)


def rounded(tokens, rounding):
    """tokens [heads, length, dim] of one sequence."""
    mean = tokens.mean(1, keepdims=True)
    channel = np.sqrt(np.abs(tokens - mean).max(1, keepdims=True))
    channel[channel == 0] = 1
    return rounding((tokens - mean) / channel) * channel + mean


def attention(query, key, value):
    score = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    weight = np.exp(score - score.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True) @ value


int8 = ("8 bits", lambda x: by_scale(x, 127, x.shape[-1]))
int4 = ("4 bits, a scale a token", lambda x: by_scale(x, 7, x.shape[-1]))
int4_groups = ("4 bits, a scale for 16", lambda x: by_scale(x, 7, 16))
int4_best = ("4 bits, scale and offset for 16", lambda x: by_scale_and_offset(x, 15, 16))
pairs = [(int8, int8), (int4, int4), (int4_groups, int4_groups), (int4_best, int4_best), (int8, int4_best), (int4_best, int8)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    layers = sorted(int(path.name[len("layer"):-len("_query.npy")]) for path in folder.glob("layer*_query.npy"))
    if not layers or not (folder / "key_lengths.npy").exists():
        print(f"cache_bits.py: {folder} has no operands, expected what bench/real_operands.py writes", file=sys.stderr)
        return 2
    lengths = np.load(folder / "key_lengths.npy")
    print("| keys | values | " + " | ".join(f"layer {layer}" for layer in layers) + " |")
    print("| --- | --- |" + " ---: |" * len(layers))
    operands = [[np.load(folder / f"layer{layer}_{what}.npy").astype(np.float64) for what in ("query", "key", "value")]
                for layer in layers]
    for (key_name, round_keys), (value_name, round_values) in pairs:
        percent = []
        for query, key, value in operands:
            error = size = 0.0
            for item, length in enumerate(lengths):
                q, k, v = (tensor[item, :, :length] for tensor in (query, key, value))
                exact = attention(q, k, v)
                error += ((attention(q, rounded(k, round_keys), rounded(v, round_values)) - exact) ** 2).sum()
                size += (exact ** 2).sum()
            percent.append(f"{100 * np.sqrt(error / size):.1f}")
        print(f"| {key_name} | {value_name} | " + " | ".join(percent) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
