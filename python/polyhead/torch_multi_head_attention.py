"""A stand-in for torch.nn.MultiheadAttention, with that module's conventions."""

from ._polyhead import InvalidArgumentError, UnsupportedError
from .multi_head_attention import MultiHeadAttention


class TorchMultiHeadAttention:
    """Called as the torch.nn.MultiheadAttention it is made from; returns (output, None).

    Weights are copied when it is made. As in that module, and unlike everywhere else in Polyhead, True in a bool attn_mask or
    key_padding_mask means *ignore*. A query that may attend to no key gives output_bias, where torch gives NaN.
    """

    def __init__(self, module):
        """Errors: UnsupportedError for bias_k, add_zero_attn and dropout in training mode."""
        if module.bias_k is not None or module.bias_v is not None:
            raise UnsupportedError("module: add_bias_kv=True is not supported")
        if module.add_zero_attn:
            raise UnsupportedError("module: add_zero_attn=True is not supported")
        if module.training and module.dropout > 0:
            raise UnsupportedError(f"module: dropout is {module.dropout} in training mode, call module.eval() first")
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.detach().chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.detach().chunk(3)
        self.batch_first = module.batch_first
        self.num_heads = module.num_heads
        self._attention = MultiHeadAttention(
            *weights,
            module.out_proj.weight,
            module.num_heads,
            query_bias=biases[0],
            key_bias=biases[1],
            value_bias=biases[2],
            output_bias=module.out_proj.bias,
        )

    def __call__(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=False,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        """[L, N, E] tensors, [N, L, E] with batch_first, or unbatched [L, E].

        key_padding_mask [N, S] and attn_mask [L, S] or [N * heads, L, S]: bool (True = ignore) or floating point (added).
        is_causal is torch's hint that attn_mask is causal, and needs attn_mask. Errors: UnsupportedError for need_weights.
        """
        import torch

        if need_weights:
            raise UnsupportedError("need_weights: is True, expected False (attention weights are not kept)")
        if is_causal and attn_mask is None:
            raise InvalidArgumentError("attn_mask: is None, expected the causal mask, as torch does with is_causal=True")
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        batch, length = query.shape[:2]

        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(batch, self.num_heads, length, key.shape[1])
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, None, None, :]
        masks = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
        merged = None
        if masks and all(mask.dtype == torch.bool for mask in masks):
            merged = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            merged = ~merged
        elif len(masks) == 1:
            merged = masks[0]
        elif masks:
            merged = sum(_added(torch, mask) for mask in masks)

        output = self._attention(query, key, value, attn_mask=merged)
        if unbatched:
            return output[0], None
        return (output if self.batch_first else output.transpose(0, 1)), None


def _added(torch, mask):
    """A mask in torch's module's convention as numbers to add."""
    if mask.dtype != torch.bool:
        return mask.float()
    return torch.zeros(mask.shape).masked_fill(mask, float("-inf"))
