// Attention on the queries, keys and values of a real model (MiniLM on sentences, written by bench/real_operands.py), and on
// random ones of the same shape and key lengths beside them: what speed owes to the numbers themselves.
#include <cstring>

#include "io/npy.hpp"
#include "polyhead/error.hpp"
#include "suite.hpp"
#include "support/attention_case.hpp"

namespace polyhead::bench {
namespace {

constexpr const char* remedy = "make them with bench/real_operands.py FOLDER and give --real-operands=FOLDER";

AlignedArray read_array(const std::string& path, const std::vector<std::int64_t>& shape) {
  const io::Array file = io::read_npy(path);
  const TensorView& view = file.view();
  std::int64_t elements = 1;
  bool same = view.dtype == DType::f32 && view.rank == static_cast<int>(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) same = same && view.shape[i] == shape[i], elements *= shape[i];
  // In C order, as the script writes them, so that the bytes can be taken as they stand.
  for (std::int64_t i = static_cast<std::int64_t>(shape.size()) - 1, stride = 1; same && i >= 0; --i) {
    same = view.shape[i] == 1 || view.strides[i] == stride;
    stride *= view.shape[i];
  }
  if (!same) {
    throw Error(ErrorCode::io_error, path + ": is " + view.describe() + ", not what bench/real_operands.py writes; " + remedy);
  }
  AlignedArray array(static_cast<std::size_t>(elements));
  std::memcpy(array.data(), file.data(), static_cast<std::size_t>(elements) * sizeof(float));
  return array;
}

std::vector<std::int64_t> read_lengths(const std::string& path) {
  const io::Array file = io::read_npy(path);
  if (file.view().dtype != DType::i64 || file.view().rank != 1) {
    throw Error(ErrorCode::io_error, path + ": is " + file.view().describe() + ", expected i64[batch]; " + remedy);
  }
  const auto* const first = static_cast<const std::int64_t*>(file.view().data);
  return {first, first + file.view().shape[0]};
}

// The shape is that of layer 0's query.
AttentionWorkload workload_of(const std::string& folder) {
  const io::Array query = io::read_npy(folder + "/layer0_query.npy");
  const TensorView& view = query.view();
  if (view.rank != 4) throw Error(ErrorCode::io_error, folder + "/layer0_query.npy: is " + view.describe() + "; " + remedy);
  AttentionWorkload workload;
  workload.batch = view.shape[0];
  workload.heads = workload.kv_heads = view.shape[1];
  workload.query_length = workload.key_length = view.shape[2];
  workload.head_dim = workload.value_dim = view.shape[3];
  workload.padded = true;
  return workload;
}

}  // namespace

std::string register_real_attention(const SuiteOptions& options) {
  const std::string folder = options.real_operands;
  if (folder.empty()) return std::string("none: ") + remedy;
  const AttentionWorkload workload = workload_of(folder);
  const std::vector<std::int64_t> shape = {workload.batch, workload.heads, workload.query_length, workload.head_dim};
  const std::vector<std::int64_t> lengths = read_lengths(folder + "/key_lengths.npy");
  const auto add = [&](const std::string& name, const std::string& prefix) {
    for (const Isa isa : options.isas) {
      for (const int threads : options.threads) {
        register_case(options, {name, isa, threads, [=] {
                                  AttentionCase::Operands operands;
                                  if (!prefix.empty()) {
                                    operands.query = read_array(prefix + "query.npy", shape);
                                    operands.key = read_array(prefix + "key.npy", shape);
                                    operands.value = read_array(prefix + "value.npy", shape);
                                  }
                                  operands.key_lengths = lengths;
                                  return std::make_unique<AttentionCase>(workload, make_runtime(isa, threads),
                                                                         std::move(operands));
                                }});
      }
    }
  };
  for (const int layer : {0, 2, 5}) {  // the first, one of the middle and the last of MiniLM's six
    const std::string name = "layer" + std::to_string(layer);
    add("attention/minilm-real-" + name, folder + "/" + name + "_");
  }
  add("attention/minilm-random", "");
  return folder;
}

}  // namespace polyhead::bench
