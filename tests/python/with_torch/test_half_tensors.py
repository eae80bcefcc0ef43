"""PyTorch's float16 and bfloat16 tensors: read in place, with an error no larger than PyTorch's own."""

import polyhead
import pytest
import torch
import torch.nn.functional as F

sdpa = polyhead.scaled_dot_product_attention
every_type = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def make(dtype, rows=33, columns=70, heads=4, kv_heads=4, dim=64, seed=0):
    torch.manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape).to(dtype)
    return draw(2, heads, rows, dim), draw(2, kv_heads, columns, dim), draw(2, kv_heads, columns, dim)


def rms_errors(query, key, value, **options):
    exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), **options)
    rms = lambda out: (out.double() - exact).square().mean().sqrt().item()
    out = sdpa(query, key, value, **options)
    assert type(out) is torch.Tensor and out.dtype == query.dtype
    is_bfloat16 = query.dtype == torch.bfloat16
    step = 2.0**-8 if is_bfloat16 else 2.0**-11
    # Where bf16 is multiplied as it is, the weights are rounded too, as PyTorch's are.
    isa = polyhead.info()["isa"]
    weights = 4e-6
    if isa.endswith("_bf16") or isa == "amx":
        weights = 2.0**-8 if is_bfloat16 else 2.0**-15 if isa == "amx" else 4e-6
    largest = value.double().abs().max()
    assert ((out.double() - exact).abs() <= largest * weights + exact.abs() * step + 2.0**-25).all()
    return rms(out), rms(F.scaled_dot_product_attention(query, key, value, **options))


@every_type
@pytest.mark.parametrize("rows", [1, 4, 33, 128])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}])
def test_error_is_no_larger_than_torchs(dtype, rows, options):
    ours, theirs = rms_errors(*make(dtype, rows), **options)
    assert ours <= 1.1 * theirs


@every_type
def test_grouped_heads_and_layouts(dtype):
    query, key, value = make(dtype, kv_heads=2)
    expected = sdpa(query, key, value, enable_gqa=True)
    torch.testing.assert_close(
        expected, F.scaled_dot_product_attention(query, key, value, enable_gqa=True), rtol=2e-2, atol=2e-2
    )
    turned = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key, value)]
    assert torch.equal(sdpa(*turned, enable_gqa=True), expected)
    wide = torch.stack([key, torch.full_like(key, torch.nan)], -1)[..., 0]
    assert wide.stride(-1) == 2 and torch.equal(sdpa(query, wide, value, enable_gqa=True), expected)


@every_type
def test_out(dtype):
    query, key, value = make(dtype)
    out = torch.full((2, 33, 4, 64), torch.nan, dtype=dtype).transpose(1, 2)
    assert sdpa(query, key, value, out=out) is out
    assert torch.equal(out, sdpa(query, key, value))


@every_type
def test_without_the_exchange_interface(dtype):
    class Old(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    tensors = make(dtype)
    out = sdpa(*(tensor.as_subclass(Old) for tensor in tensors))
    assert out.dtype == dtype and torch.equal(out, sdpa(*tensors))


@every_type
def test_types_may_not_be_mixed(dtype):
    query, key, value = make(dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=f"key: data type is float32, expected {name}, query's"):
        sdpa(query, key.float(), value)
    with pytest.raises(TypeError, match=f"value: data type is {name}, expected float32, query's"):
        sdpa(query.float(), key.float(), value)


@every_type
@pytest.mark.parametrize("rows", [1, 33])
def test_masks(dtype, rows):
    tensors = make(dtype, rows)
    mask = torch.randn(2, 1, rows, 70).to(dtype)
    mask[..., 5] = -torch.inf
    for operands in (tensors, [tensor.float() for tensor in tensors]):
        for turned in (mask, mask.flip(2), mask.transpose(2, 3).contiguous().transpose(2, 3), mask[..., :1].expand_as(mask)):
            assert torch.equal(sdpa(*operands, attn_mask=turned), sdpa(*operands, attn_mask=turned.float()))


@every_type
def test_numbers_of_heads_and_tables(dtype):
    query, key, value = make(dtype)
    for shape, option in [
        ((4,), lambda x: {"alibi_slopes": x}),
        ((2, 4), lambda x: {"alibi_slopes": x}),
        ((4,), lambda x: {"sink": x}),
        ((32, 4), lambda x: {"relative_bias": polyhead.T5Bias(x)}),
    ]:
        numbers = torch.randn(*shape).to(dtype)
        out = sdpa(query, key, value, **option(numbers))
        assert torch.equal(out, sdpa(query, key, value, **option(numbers.float())))
        assert not torch.equal(out, sdpa(query, key, value, **option(-numbers)))
