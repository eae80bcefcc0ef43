// Layer norm over the last dimension of a tensor with any strides.
#pragma once

#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::layer {

// Arguments are checked. gamma and beta may be empty; y may be x itself.
void layer_norm(const dispatch::KernelTable& kernels, graph::Scheduler& scheduler, const TensorView& x, const TensorView& gamma,
                const TensorView& beta, double epsilon, const TensorView& y);

}  // namespace polyhead::layer
