#include "layer/linear.hpp"

#include <algorithm>

#include "io/array.hpp"
#include "layer/geometry.hpp"

namespace polyhead::layer {
namespace {

// Multiply-adds that make a share worth handing to another thread, about 20 microseconds.
constexpr std::int64_t least_share = 700'000;

float element(const TensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::bf16:
      return io::bf16_to_f32(static_cast<const std::uint16_t*>(view.data)[offset]);
    case DType::f16:
      return io::f16_to_f32(static_cast<const std::uint16_t*>(view.data)[offset]);
    default:
      return static_cast<const float*>(view.data)[offset];
  }
}

std::int64_t stride(const TensorView& view, std::size_t dimension) {
  return view.shape[dimension] == 1 ? 0 : view.strides[dimension];
}

struct ColumnShares {
  const simd::GemmKernel* kernel;
  simd::GemmF32Args args;
  std::int64_t columns;
};

}  // namespace

platform::AlignedBuffer copy_vector(const TensorView& view) {
  if (view.empty()) return {};
  platform::AlignedBuffer buffer(static_cast<std::size_t>(view.shape[0]) * sizeof(float));
  for (std::int64_t i = 0; i < view.shape[0]; ++i) buffer.as<float>()[i] = element(view, i * stride(view, 0));
  return buffer;
}

platform::AlignedBuffer pack_together(const simd::GemmKernel& kernel, const std::vector<LinearParts>& products) {
  WorkspaceLayout layout;
  std::vector<std::size_t> offsets;
  for (const LinearParts& product : products) offsets.push_back(layout.add(Linear::packed_bytes(kernel, product.parts)));
  platform::AlignedBuffer memory(layout.bytes());
  for (std::size_t i = 0; i < products.size(); ++i) {
    *products[i].linear = Linear(kernel, products[i].parts, memory.as<char>() + offsets[i]);
  }
  return memory;
}

std::size_t Linear::packed_bytes(const simd::GemmKernel& kernel, const std::vector<Part>& parts) {
  std::int64_t n = 0;
  for (const Part& part : parts) n += part.weight.shape[0];
  return kernel.packed_bytes(n, parts[0].weight.shape[1]);
}

Linear::Linear(const simd::GemmKernel& kernel, const std::vector<Part>& parts, void* packed)
    : kernel_(&kernel), k_(parts[0].weight.shape[1]), packed_(packed) {
  for (const Part& part : parts) n_ += part.weight.shape[0];
  simd::PackF32Args pack;
  pack.n = n_;
  pack.k = k_;
  pack.packed = packed;
  platform::AlignedBuffer stacked;
  if (parts.size() == 1 && parts[0].weight.dtype == DType::f32) {
    const TensorView& weight = parts[0].weight;
    pack.weight = static_cast<const float*>(weight.data);
    pack.n_stride = stride(weight, 0) * static_cast<std::ptrdiff_t>(sizeof(float));
    pack.k_stride = stride(weight, 1) * static_cast<std::ptrdiff_t>(sizeof(float));
  } else {
    stacked = platform::AlignedBuffer(static_cast<std::size_t>(n_ * k_) * sizeof(float));
    float* to = stacked.as<float>();
    for (const Part& part : parts) {
      for (std::int64_t n = 0; n < part.weight.shape[0]; ++n) {
        for (std::int64_t k = 0; k < k_; ++k)
          *to++ = element(part.weight, n * stride(part.weight, 0) + k * stride(part.weight, 1));
      }
    }
    pack.weight = stacked.as<float>();
    pack.n_stride = k_ * static_cast<std::ptrdiff_t>(sizeof(float));
    pack.k_stride = sizeof(float);
  }
  kernel.pack(pack);

  for (const Part& part : parts) has_bias_ = has_bias_ || !part.bias.empty();
  if (!has_bias_) return;
  bias_ = platform::AlignedBuffer(static_cast<std::size_t>(n_) * sizeof(float));
  float* to = bias_.as<float>();
  for (const Part& part : parts) {
    for (std::int64_t n = 0; n < part.weight.shape[0]; ++n)
      *to++ = part.bias.empty() ? 0.0f : element(part.bias, n * stride(part.bias, 0));
  }
}

simd::GemmF32Args Linear::arguments(const Rows& rows, simd::Activation activation) const {
  simd::GemmF32Args args;
  args.a = rows.x;
  args.a_stride = rows.x_stride;
  args.packed = packed_;
  args.bias = has_bias_ ? bias_.as<float>() : nullptr;
  args.residual = rows.residual;
  args.residual_stride = rows.residual_stride;
  args.c = rows.y;
  args.c_stride = rows.y_stride;
  args.m = rows.count;
  args.n = n_;
  args.k = k_;
  args.n_end = n_;
  args.activation = activation;
  return args;
}

void Linear::run(const Rows& rows, simd::Activation activation, graph::Scheduler* scheduler) const {
  if (rows.count == 0) return;
  const simd::GemmF32Args args = arguments(rows, activation);
  const std::int64_t panels = divide_up(n_, kernel_->panel_width);
  std::int64_t shares = 1;
  if (scheduler != nullptr) {
    // Two shares a thread even out what other processes take away; more would read the rows too often.
    shares = std::min({panels, 2 * static_cast<std::int64_t>(scheduler->threads()), rows.count * n_ * k_ / least_share});
  }
  if (shares <= 1) {
    kernel_->run(args);
    return;
  }
  ColumnShares work{kernel_, args, divide_up(panels, shares) * kernel_->panel_width};
  scheduler->parallel_for(
      static_cast<std::size_t>(divide_up(n_, work.columns)),
      [](void* context, std::size_t index, int) {
        const ColumnShares& all = *static_cast<const ColumnShares*>(context);
        simd::GemmF32Args share = all.args;
        share.n_begin = static_cast<std::int64_t>(index) * all.columns;
        share.n_end = std::min(share.n_begin + all.columns, share.n);
        all.kernel->run(share);
      },
      &work);
}

}  // namespace polyhead::layer
