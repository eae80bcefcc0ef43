// Exponentials and activations of one vector: the row-wise kernels and the GEMM's epilogue share them, so that a fused and a
// separate activation give the same bits. Multiply-adds are written as such: what a compiler may contract depends on the place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// 2^n for integral n in [-127, 127]; -127 gives 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfTwo(D d, V n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
}

// Clamps that hand a NaN of v on. x86's max and min return their second operand when one is NaN; other instruction sets
// differ among themselves.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtLeast(D d, V v, float bound) {
  const V limit = hn::Set(d, bound);
  return HWY_ARCH_X86 ? hn::Max(limit, v) : hn::IfThenElse(hn::Lt(v, limit), limit, v);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtMost(D d, V v, float bound) {
  const V limit = hn::Set(d, bound);
  return HWY_ARCH_X86 ? hn::Min(limit, v) : hn::IfThenElse(hn::Gt(v, limit), limit, v);
}

// e^x for x <= 88; below -87.7 the result is 0. Error at most 1 unit in the last place. The rounded exponent is taken off in
// two parts of ln 2, then a minimax polynomial of degree 6 on [-ln2 / 2, ln2 / 2] (1.9e-9).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const V bounded = AtLeast(d, x, -88.0f);
  const V n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), bounded);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  V p = hn::Set(d, 0.00138368340511544f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00837482207068838f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166822611545721f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666420095636872f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999992075889205f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::Mul(p, PowerOfTwo(d, n));
}

// 2^x for x <= 0; below -126.5 the result is 0. Degree 5 with the constant term held at 1: 7.5e-8.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2NonPositive(D d, V x) {
  const V bounded = AtLeast(d, x, -127.0f);
  const V n = hn::Round(bounded);  // of NaN: NaN, and its power of two is garbage, but p is NaN then
  const V r = hn::Sub(bounded, n);
  V p = hn::Set(d, 0.00132844888f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00967399217f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0555078425f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.240221962f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.693146825f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::Mul(p, PowerOfTwo(d, n));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Relu(D d, V x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
}

// x Phi(x) = max(x, 0) - a Q(a) with a = |x| and the upper tail Q = 1 - Phi, which keeps full accuracy on both sides. log2 Q is
// smooth and close to a parabola: degree 11 on [0, 13.2], weighted so that a Q(a) is right to 6e-8; Q underflows beyond. This
// costs no division, unlike forms in 1 / (1 + c a).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluErf(D d, V x) {
  const V a = AtMost(d, hn::Abs(x), 13.2f);
  V p = hn::Set(d, 9.618267293731719e-11f);
  p = hn::MulAdd(p, a, hn::Set(d, -6.344653691314761e-09f));
  p = hn::MulAdd(p, a, hn::Set(d, 1.7571805699390097e-07f));
  p = hn::MulAdd(p, a, hn::Set(d, -2.6086329398822272e-06f));
  p = hn::MulAdd(p, a, hn::Set(d, 2.1148329324205406e-05f));
  p = hn::MulAdd(p, a, hn::Set(d, -6.361962005030364e-05f));
  p = hn::MulAdd(p, a, hn::Set(d, -0.0005082834977656603f));
  p = hn::MulAdd(p, a, hn::Set(d, 0.007654721383005381f));
  p = hn::MulAdd(p, a, hn::Set(d, -0.05299368128180504f));
  p = hn::MulAdd(p, a, hn::Set(d, -0.45900633931159973f));
  p = hn::MulAdd(p, a, hn::Set(d, -1.1511348485946655f));
  p = hn::MulAdd(p, a, hn::Set(d, -1.0f));
  return hn::NegMulAdd(a, Exp2NonPositive(d, p), Relu(d, x));
}

// 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), as max(x, 0) - a e / (1 + e) with a = |x|, e = exp(-2 u(a)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  const V a = AtMost(d, hn::Abs(x), 11.0f);                                                       // e is 0 from 10.1 on
  const V cubic = hn::MulAdd(hn::Mul(a, a), hn::Set(d, -0.10294324f), hn::Set(d, -2.30220818f));  // -2 log2(e) sqrt(2 / pi) ...
  const V e = Exp2NonPositive(d, hn::Mul(a, cubic));
  const V tail = hn::Div(e, hn::Add(hn::Set(d, 1.0f), e));
  return hn::NegMulAdd(a, tail, Relu(d, x));
}

template <Activation kActivation, class D, class V = hn::Vec<D>>
HWY_INLINE V Activate(D d, V x) {
  if constexpr (kActivation == Activation::relu) {
    return Relu(d, x);
  } else if constexpr (kActivation == Activation::gelu_erf) {
    return GeluErf(d, x);
  } else if constexpr (kActivation == Activation::gelu_tanh) {
    return GeluTanh(d, x);
  } else {
    return x;
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
