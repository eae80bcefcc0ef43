"""MultiHeadAttention: query, key and value projections, attention and the output projection as one operator."""

import threading

import numpy as np

from . import _polyhead


class MultiHeadAttention:
    """y = concat_h(softmax(x W_Q[h]' (x_k W_K[g]')' scale) x_v W_V[g]') W_O' + b_O, with weights packed once.

    Weights are float32, float16 or bfloat16 [output width, input width] as torch's Linear keeps them:
    query_weight [heads * D, d_model], key_weight [kv_heads * D, key width], value_weight [kv_heads * E, value width],
    output_weight [d_model, heads * E]; biases have the output width, or are None. kv_heads (default: heads) divides heads.
    precision is that of the attention inside, as in scaled_dot_product_attention. weights: what they are kept as, "f32", "bf16",
    "f16", "int8", "int4", "int8_dynamic" or "bf16_dynamic" (the last two round inputs of products too), whatever they come as.
    The number of threads is the one set when the operator is made.

    Weights are packed once for each kind of mask that calls use (none, causal, lengths, boolean, additive and combinations),
    on its first use.
    """

    def __init__(
        self,
        query_weight,
        key_weight,
        value_weight,
        output_weight,
        heads,
        *,
        kv_heads=None,
        query_bias=None,
        key_bias=None,
        value_bias=None,
        output_bias=None,
        scale=None,
        precision="strict",
        weights="f32",
    ):
        # Copies of our own: an operator for another kind of mask may be packed much later.
        self._weights = [_copied(weight) for weight in (query_weight, key_weight, value_weight, output_weight)]
        biases = dict(query_bias=query_bias, key_bias=key_bias, value_bias=value_bias, output_bias=output_bias)
        self._options = dict(
            heads=heads,
            kv_heads=heads if kv_heads is None else kv_heads,
            scale=scale,
            precision=precision,
            weights=weights,
            **{name: _copied(bias) for name, bias in biases.items()},
        )
        self._operators = {}
        self._lock = threading.Lock()
        self._operator(causal=False, key_lengths=False, boolean=False, bias=False)  # refuses wrong weights now

    @staticmethod
    def from_torch(module):
        """The operator of a torch.nn.MultiheadAttention, called as that module is: see TorchMultiHeadAttention."""
        from .torch_multi_head_attention import TorchMultiHeadAttention

        return TorchMultiHeadAttention(module)

    def __call__(self, query, key=None, value=None, *, attn_mask=None, is_causal=False, key_lengths=None, out=None):
        """query [batch, T, d_model]; key and value [batch, S, width], by default the query, and the key.

        attn_mask broadcasts to [batch, heads, T, S]: bool (True = attend) or floating point (added to the scores; float32,
        float16 and bfloat16 are read in place, float64 is converted in each call). is_causal: query t sees keys s <= t.
        key_lengths: integers [batch]. Masks combine. Returns float32 [batch, T, d_model], in out when it is given, else of the
        query's kind.
        """
        boolean = attn_mask is not None and "bool" in str(getattr(attn_mask, "dtype", ""))
        bias = attn_mask is not None and not boolean
        operator = self._operator(causal=bool(is_causal), key_lengths=key_lengths is not None, boolean=boolean, bias=bias)
        return operator.run(
            query, key, value, attn_mask if boolean else None, attn_mask if bias else None, key_lengths, out
        )

    def _operator(self, **mask):
        kind = tuple(mask.values())
        operator = self._operators.get(kind)
        if operator is None:
            with self._lock:
                operator = self._operators.get(kind)
                if operator is None:
                    operator = _polyhead.MultiHeadAttentionOperator.make(*self._weights, **self._options, **mask)
                    self._operators[kind] = operator
        return operator


def _copied(weight):
    if weight is None:
        return None
    if hasattr(weight, "detach"):  # a torch parameter; NumPy has no bfloat16
        return weight.detach().cpu().clone()
    return np.array(weight)
