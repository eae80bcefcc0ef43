#include "run_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "polyhead/error.hpp"

namespace polyhead::cli {
namespace {

[[noreturn]] void unfit(const char* option, const std::string& path, const TensorView& view, const std::string& expected) {
  throw Error(ErrorCode::io_error, fmt::format("{} {}: holds {}, expected {}", option, path, shape_text(view), expected));
}

}  // namespace

std::string shape_text(const TensorView& view) {
  return fmt::format("{}[{}]", name(view.dtype), fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

io::Array read_operand(const char* option, const std::string& path) {
  io::Array array = io::read_npy(path);
  const TensorView& view = array.view();
  if (view.dtype != DType::f32 && view.dtype != DType::f16) {
    unfit(option, path, view, "f32 or f16 (numpy: array.astype(numpy.float32))");
  }
  if (view.rank != 4) unfit(option, path, view, "4 dimensions");
  return array;
}

io::Array read_f32(const char* option, const std::string& path, int least_rank, int most_rank) {
  io::Array array = io::read_npy(path);
  const TensorView& view = array.view();
  if (view.dtype != DType::f32) unfit(option, path, view, "f32 (numpy: array.astype(numpy.float32))");
  if (view.rank < least_rank || view.rank > most_rank) {
    unfit(option, path, view,
          least_rank == most_rank ? fmt::format("{} dimensions", most_rank)
                                  : fmt::format("{} to {} dimensions", least_rank, most_rank));
  }
  return array;
}

void MaskOptions::add_options(CLI::App& command) {
  command.add_option("--causal", causal_, "top-left: key s is seen when s <= t; bottom-right: when s <= t + S - T")
      ->type_name("WHERE");
  command
      .add_option("--window", window_,
                  "Keys left and right of the diagonal, inclusive; -1 for no limit; KEPT first keys stay in sight")
      ->type_name("L,R[,KEPT]");
  command.add_option("--key-lengths", key_lengths_path_, "int32 or int64 [B]: keys at or beyond the length do not exist")
      ->type_name("NPY");
  command.add_option("--mask", boolean_path_, "bool or uint8, broadcastable to [B, H, T, S]; true: attend")->type_name("NPY");
  command.add_option("--bias", bias_path_, "float32, broadcastable to [B, H, T, S], added to the scaled scores; -inf excludes")
      ->type_name("NPY");
}

void MaskOptions::read() {
  const Causal causal = parse_causal(causal_);
  mask_ = parse_window(window_);
  if (causal != Causal::none) mask_ = mask_ & Mask::causal(causal);
  if (!key_lengths_path_.empty()) {
    key_lengths_ = io::read_npy(key_lengths_path_);
    const DType dtype = key_lengths_.view().dtype;
    if (dtype != DType::i32 && dtype != DType::i64)
      unfit("--key-lengths", key_lengths_path_, key_lengths_.view(), "int32 or int64 [B]");
    mask_ = mask_ & Mask::key_lengths();
  }
  if (!boolean_path_.empty()) {
    boolean_ = io::read_npy(boolean_path_);
    const DType dtype = boolean_.view().dtype;
    if (dtype != DType::boolean && dtype != DType::u8) unfit("--mask", boolean_path_, boolean_.view(), "bool or uint8");
    mask_ = mask_ & Mask::boolean();
  }
  if (!bias_path_.empty()) {
    bias_ = read_f32("--bias", bias_path_, 0, 4);
    mask_ = mask_ & Mask::bias();
  }
}

}  // namespace polyhead::cli
