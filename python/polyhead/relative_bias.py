"""Biases that a learned table gives by how query and key lie to each other."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class T5Bias:
    """T5's relative position bias: table[bucket of (key position - query position), head] is added to each score.

    table: float32, float16 or bfloat16 [buckets, heads], a T5 model's relative_attention_bias.weight. bidirectional: an encoder's, half of whose
    buckets are for keys behind the query; False: a decoder's. Distances from max_distance on share a bucket.
    T5 does not scale its scores: give scale=1.0 with it.
    """

    table: typing.Any
    bidirectional: bool = True
    max_distance: int = 128


@dataclasses.dataclass(frozen=True)
class SwinBias:
    """Swin Transformer's: queries and keys are the positions of a window of an image, row by row.

    table: float32, float16 or bfloat16 [(2 * height - 1) * (2 * width - 1), heads], a Swin model's relative_position_bias_table.
    window: (height, width). Goes with neither causal nor ALiBi, and not over a cache: positions of an image have no order.
    """

    table: typing.Any
    window: typing.Tuple[int, int]
