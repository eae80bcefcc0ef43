#include "layer/layer_norm.hpp"

#include <algorithm>
#include <vector>

#include "layer/geometry.hpp"
#include "layer/linear.hpp"

namespace polyhead::layer {
namespace {

// Elements that make a share of rows, about 20 microseconds.
constexpr std::int64_t share_elements = 64 * 1024;

struct NormJob {
  const dispatch::KernelTable* kernels;
  const TensorView *x, *y;
  simd::LayerNormF32Args args;  // without rows and addresses
  std::int64_t rows, inner_rows, rows_per_share;
};

// Where row `row` of all outer dimensions begins, in elements.
std::int64_t row_offset(const TensorView& view, std::int64_t row) {
  std::int64_t offset = 0;
  for (int i = view.rank - 2; i >= 0; --i) {
    const auto dimension = static_cast<std::size_t>(i);
    if (view.shape[dimension] == 1) continue;
    offset += row % view.shape[dimension] * view.strides[dimension];
    row /= view.shape[dimension];
  }
  return offset;
}

bool last_is_contiguous(const TensorView& view) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  return view.shape[last] == 1 || view.strides[last] == 1;
}

// Rows one by one through contiguous memory, for a last dimension with a stride.
void norm_gathered(const NormJob& job, std::int64_t begin, std::int64_t end) {
  const auto last = static_cast<std::size_t>(job.x->rank - 1);
  std::vector<float> row(static_cast<std::size_t>(job.args.dim));
  for (std::int64_t r = begin; r < end; ++r) {
    const float* from = static_cast<const float*>(job.x->data) + row_offset(*job.x, r);
    float* to = static_cast<float*>(job.y->data) + row_offset(*job.y, r);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = from[static_cast<std::int64_t>(i) * job.x->strides[last]];
    simd::LayerNormF32Args args = job.args;
    args.x = row.data();
    args.y = row.data();
    args.rows = 1;
    job.kernels->layer_norm_f32->run(args);
    for (std::size_t i = 0; i < row.size(); ++i) to[static_cast<std::int64_t>(i) * job.y->strides[last]] = row[i];
  }
}

void norm_share(void* context, std::size_t index, int) {
  const NormJob& job = *static_cast<const NormJob*>(context);
  const std::int64_t begin = static_cast<std::int64_t>(index) * job.rows_per_share,
                     end = std::min(begin + job.rows_per_share, job.rows);
  if (!last_is_contiguous(*job.x) || !last_is_contiguous(*job.y)) return norm_gathered(job, begin, end);
  // The kernel takes rows of one stride: those of the innermost row dimension.
  for (std::int64_t row = begin; row < end;) {
    simd::LayerNormF32Args args = job.args;
    args.x = static_cast<const float*>(job.x->data) + row_offset(*job.x, row);
    args.y = static_cast<float*>(job.y->data) + row_offset(*job.y, row);
    args.rows = std::min(job.inner_rows - row % job.inner_rows, end - row);
    job.kernels->layer_norm_f32->run(args);
    row += args.rows;
  }
}

}  // namespace

void layer_norm(const dispatch::KernelTable& kernels, graph::Scheduler& scheduler, const TensorView& x, const TensorView& gamma,
                const TensorView& beta, double epsilon, const TensorView& y) {
  const auto last = static_cast<std::size_t>(x.rank - 1);
  const auto is_dense = [](const TensorView& view) { return view.empty() || view.shape[0] == 1 || view.strides[0] == 1; };
  platform::AlignedBuffer dense_gamma, dense_beta;
  if (!is_dense(gamma)) dense_gamma = copy_vector(gamma);
  if (!is_dense(beta)) dense_beta = copy_vector(beta);

  NormJob job{};
  job.kernels = &kernels;
  job.x = &x;
  job.y = &y;
  job.args.dim = x.shape[last];
  job.args.epsilon = epsilon;
  job.args.gamma = dense_gamma.data() != nullptr ? dense_gamma.as<float>() : static_cast<const float*>(gamma.data);
  job.args.beta = dense_beta.data() != nullptr ? dense_beta.as<float>() : static_cast<const float*>(beta.data);
  job.rows = x.element_count() / job.args.dim;
  job.inner_rows = 1;
  if (x.rank >= 2) {
    job.inner_rows = x.shape[last - 1];
    job.args.x_stride = x.strides[last - 1] * static_cast<std::ptrdiff_t>(sizeof(float));
    job.args.y_stride = y.strides[last - 1] * static_cast<std::ptrdiff_t>(sizeof(float));
  }
  job.rows_per_share = std::max<std::int64_t>(1, share_elements / job.args.dim);
  const auto shares = static_cast<std::size_t>(divide_up(job.rows, job.rows_per_share));
  if (shares == 1) return norm_share(&job, 0, 0);
  scheduler.parallel_for(shares, norm_share, &job);
}

}  // namespace polyhead::layer
