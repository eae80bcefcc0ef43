"""PyTorch tensors: read in place, refused where they cannot be, equal to PyTorch's own results."""

import gc

import numpy as np
import polyhead
import pytest
import reference
import torch
import torch.nn.functional as F

sdpa = polyhead.scaled_dot_product_attention


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return torch.randn(2, 4, 9, 16), torch.randn(2, 4, 11, 16), torch.randn(2, 4, 11, 16)


def check(query, key, value, **options):
    out = sdpa(query, key, value, **options)
    assert type(out) is torch.Tensor and out.dtype == torch.float32
    expected = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), **{
        name: option.double() if isinstance(option, torch.Tensor) and option.is_floating_point() else option
        for name, option in options.items()
    })
    reference.assert_close(out.numpy(), expected.numpy(), reference.tolerance(query, key, value))


def test_equal_to_torch(tensors):
    check(*tensors)
    check(*tensors, is_causal=True)
    check(*tensors, scale=0.3)
    check(*tensors, attn_mask=torch.rand(9, 11) < 0.7)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        check(*tensors, attn_mask=torch.randn(2, 1, 9, 11).to(dtype))
    query, key, value = tensors
    check(query, key[:, :2], value[:, :2], enable_gqa=True)
    check(query[0], key[0], value[0])
    check(query[0, 0], key[0, 0], value[0, 0])
    check(query, key[:1], value[:, :1])
    check(query[None].expand(3, -1, -1, -1, -1), key, value)


def test_layouts(tensors):
    expected = sdpa(*tensors)
    query, key, value = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors)
    torch.testing.assert_close(sdpa(query, key, value), expected, rtol=0, atol=1e-6)
    wide = torch.stack([tensors[1], torch.full_like(tensors[1], torch.nan)], -1)[..., 0]
    assert wide.stride(-1) == 2
    torch.testing.assert_close(sdpa(tensors[0], wide, tensors[2]), expected, rtol=0, atol=1e-6)
    spread = tensors[1][:1].expand(2, -1, -1, -1)
    torch.testing.assert_close(
        sdpa(tensors[0], spread, tensors[2]), F.scaled_dot_product_attention(tensors[0], spread, tensors[2])
    )


def test_alignments_of_torch(tensors):
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    query, key, value = tensors
    for causal, bias in (("top_left", causal_upper_left(9, 11)), ("bottom_right", causal_lower_right(9, 11))):
        out = sdpa(query, key, value, causal=causal)
        expected = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=bias)
        reference.assert_close(out.numpy(), expected.numpy(), reference.tolerance(query, key, value))
    offsets = torch.tensor([2, 2], dtype=torch.int32)
    assert torch.equal(sdpa(query, key, value, causal="offset", offsets=offsets), out)
    mask = torch.rand(9, 11) < 0.7
    seen = mask & torch.ones(9, 11, dtype=torch.bool).tril(2)
    assert torch.equal(sdpa(query, key, value, mask, causal="bottom_right"), sdpa(query, key, value, seen))


def test_sinks_and_lse_over_a_cache(tensors):
    query, key, value = tensors
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=4, head_dim=16, page_tokens=4)
    cache.append(key, value)
    sink = torch.randn(4).bfloat16()
    out, lse = cache.attention(query, sink=sink, return_lse=True)
    assert type(lse) is torch.Tensor and lse.dtype == torch.float32 and lse.shape == (2, 4, 9)
    by_length = [tensor.transpose(1, 2) for tensor in tensors]
    flash, flash_lse, _ = polyhead.flash_attn_func(*by_length, causal=True, sink=sink, return_attn_probs=True)
    assert torch.equal(out, flash.transpose(1, 2)) and torch.equal(lse, flash_lse)
    over_cache = polyhead.flash_attn_with_kvcache(by_length[0], cache, None, causal=True, sink=sink, return_softmax_lse=True)
    assert torch.equal(over_cache[0], flash) and torch.equal(over_cache[1], lse)


def test_same_bits_as_numpy(tensors):
    out = sdpa(*tensors)
    from_numpy = sdpa(*(tensor.numpy() for tensor in tensors))
    assert isinstance(from_numpy, np.ndarray)
    np.testing.assert_array_equal(out.numpy(), from_numpy)
    mixed = sdpa(tensors[0].numpy(), *tensors[1:], key_lengths=torch.tensor([11, 3], dtype=torch.int32))
    assert isinstance(mixed, np.ndarray)
    torch.testing.assert_close(torch.from_numpy(mixed), sdpa(*tensors, key_lengths=[11, 3]), rtol=0, atol=0)


def test_out(tensors):
    out = torch.full((2, 9, 4, 16), torch.nan).transpose(1, 2)
    assert sdpa(*tensors, out=out) is out
    torch.testing.assert_close(out, sdpa(*tensors), rtol=0, atol=0)


def test_a_result_outlives_its_inputs(tensors):
    expected = sdpa(*tensors)
    out = sdpa(*(tensor.clone() for tensor in tensors))
    gc.collect()
    junk = [torch.randn(2, 4, 9, 16) for _ in range(20)]
    assert torch.equal(out, expected) and junk


def test_rows_without_keys_are_zero_where_torch_may_give_nan(tensors):
    assert not sdpa(*tensors, attn_mask=torch.zeros(9, 11, dtype=torch.bool)).any()


def test_gradients_are_refused(tensors):
    query = tensors[0].requires_grad_()
    with pytest.raises(polyhead.UnsupportedError, match="query: requires grad.*no_grad"):
        sdpa(query, *tensors[1:])
    with pytest.raises(polyhead.UnsupportedError, match="attn_mask: requires grad"):
        sdpa(query.detach(), *tensors[1:], attn_mask=torch.zeros(9, 11, requires_grad=True))
    expected = sdpa(query.detach(), *tensors[1:])
    with torch.no_grad():
        assert torch.equal(sdpa(query, *tensors[1:]), expected)
        assert torch.equal(sdpa(torch.nn.Parameter(query), *tensors[1:]), expected)
    with torch.inference_mode():
        assert torch.equal(sdpa(query, *tensors[1:]), expected)


def test_tensors_without_plain_memory_are_refused(tensors):
    query, key, value = tensors
    negated = torch.complex(query, -query).conj().imag
    assert negated.is_neg()
    with pytest.raises(polyhead.InvalidArgumentError, match="query: is a lazily negated view.*resolve_neg"):
        sdpa(negated, key, value)
    assert torch.equal(sdpa(negated.resolve_neg(), key, value), sdpa(query, key, value))
    with pytest.raises(polyhead.InvalidArgumentError, match="key: .*(meta|memory)"):
        sdpa(query, key.to("meta"), value)
    with pytest.raises(polyhead.InvalidArgumentError, match="query: is no strided memory.*storage"):
        sdpa(query.to_sparse(), key, value)
    with pytest.raises(polyhead.InvalidArgumentError, match="query: is no strided memory"):
        sdpa(query.to_mkldnn(), key, value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_other_data_types_are_refused(tensors, dtype):
    with pytest.raises(TypeError, match="query: data type.*" + str(dtype).removeprefix("torch.")):
        sdpa(tensors[0].to(dtype), *tensors[1:])


def test_without_the_exchange_interface(tensors):
    """Tensors of a PyTorch that offers no exchange table are read through their attributes, with the same results."""

    class Old(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    old = [tensor.as_subclass(Old) for tensor in tensors]
    assert torch.equal(sdpa(*old), sdpa(*tensors))
    assert torch.equal(sdpa(*old, attn_mask=torch.zeros(9, 11).bfloat16().as_subclass(Old)), sdpa(*tensors, attn_mask=torch.zeros(9, 11)))
    for wrong, message in [
        (tensors[0].clone().requires_grad_(), "requires grad"),
        (tensors[0].to("meta"), "meta"),
        (tensors[0].to_sparse(), "sparse"),
    ]:
        with pytest.raises(polyhead.Error, match=message):
            sdpa(torch.Tensor._make_subclass(Old, wrong, wrong.requires_grad), *tensors[1:])


def test_subclasses_and_many_types(tensors):
    expected = sdpa(*tensors)
    for index in range(100):
        kind = type(f"Kind{index}", (torch.Tensor,), {})
        assert torch.equal(sdpa(*(tensor.as_subclass(kind) for tensor in tensors)), expected)


def test_empty_tensors():
    assert sdpa(torch.zeros(0, 2, 4, 8), torch.zeros(0, 2, 5, 8), torch.zeros(0, 2, 5, 8)).shape == (0, 2, 4, 8)
    assert not sdpa(torch.ones(1, 2, 4, 8), torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 3)).any()
