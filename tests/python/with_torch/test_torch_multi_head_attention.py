"""TorchMultiHeadAttention beside the torch.nn.MultiheadAttention it is made from."""

import polyhead
import pytest
import torch


def make(**options):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(24, 3, **options).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.25)
    return module, polyhead.MultiHeadAttention.from_torch(module)


def check(module, ours, *arguments, **options):
    with torch.no_grad():
        expected, _ = module.double()(*(tensor.double() for tensor in arguments), need_weights=False, **options)
        module.float()
        output, weights = ours(*arguments, **options)
    assert weights is None and output.dtype == torch.float32
    torch.testing.assert_close(output, expected.float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention(batch_first, bias):
    module, ours = make(batch_first=batch_first, bias=bias)
    x = torch.randn(5, 6, 24)
    check(module, ours, x, x, x)
    check(module, ours, x[0], x[0], x[0])


def test_cross_attention_with_other_widths():
    module, ours = make(batch_first=True, kdim=17, vdim=9)
    check(module, ours, torch.randn(2, 5, 24), torch.randn(2, 7, 17), torch.randn(2, 7, 9))


def test_masks_where_true_means_ignore():
    module, ours = make(batch_first=True)
    x = torch.randn(2, 6, 24)
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    per_head = torch.rand(6, 6, 6) < 0.3
    per_head[..., 0] = False
    check(module, ours, x, x, x, attn_mask=causal)
    check(module, ours, x, x, x, attn_mask=causal, is_causal=True)
    check(module, ours, x, x, x, key_padding_mask=padding)
    check(module, ours, x, x, x, key_padding_mask=padding, attn_mask=causal)
    check(module, ours, x, x, x, attn_mask=per_head)
    bias = torch.randn(6, 6)
    with torch.no_grad():
        expected, _ = module(x, x, x, need_weights=False, attn_mask=bias)
        torch.testing.assert_close(ours(x, x, x, attn_mask=bias)[0], expected, rtol=0, atol=2e-5)
        mixed = ours(x, x, x, attn_mask=bias, key_padding_mask=padding)[0]
        expected, _ = module(x, x, x, need_weights=False, attn_mask=bias, key_padding_mask=torch.zeros(2, 6).masked_fill(padding, -torch.inf))
        torch.testing.assert_close(mixed, expected, rtol=0, atol=2e-5)


def test_a_row_that_ignores_all_keys_gives_the_bias():
    module, ours = make(batch_first=True)
    x = torch.randn(1, 6, 24)
    out, _ = ours(x, x, x, key_padding_mask=torch.ones(1, 6, dtype=torch.bool))
    torch.testing.assert_close(out, module.out_proj.bias.detach().expand(1, 6, 24), rtol=0, atol=1e-6)


@pytest.mark.parametrize("options, message", [({"add_bias_kv": True}, "add_bias_kv"), ({"add_zero_attn": True}, "add_zero_attn")])
def test_what_is_not_supported(options, message):
    with pytest.raises(polyhead.UnsupportedError, match=message):
        make(**options)


def test_dropout_needs_eval():
    module = torch.nn.MultiheadAttention(24, 3, dropout=0.1)
    with pytest.raises(polyhead.UnsupportedError, match="eval"):
        polyhead.MultiHeadAttention.from_torch(module)
    polyhead.MultiHeadAttention.from_torch(module.eval())


def test_calls_that_are_refused():
    _, ours = make(batch_first=True)
    x = torch.randn(2, 6, 24)
    with pytest.raises(polyhead.UnsupportedError, match="need_weights"):
        ours(x, x, x, need_weights=True)
    with pytest.raises(polyhead.InvalidArgumentError, match="attn_mask"):
        ours(x, x, x, is_causal=True)
