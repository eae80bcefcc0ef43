// What the two run commands share: the mask options with their files, and inputs read from .npy.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "command.hpp"
#include "io/npy.hpp"
#include "polyhead/mask.hpp"

namespace polyhead::cli {

// A 32-bit float array of one of the wanted ranks. Errors: io_error and unsupported as read_npy; io_error naming option and
// file for another data type or rank.
io::Array read_f32(const char* option, const std::string& path, int least_rank, int most_rank);

// An array of rank 4 of a data type that attention takes and .npy files can hold: 32-bit or 16-bit floats. Errors: likewise.
io::Array read_operand(const char* option, const std::string& path);

// --causal, --window, --key-lengths, --mask and --bias.
class MaskOptions {
 public:
  void add_options(CLI::App& command);
  // Reads the files. Errors: UsageError, io_error.
  void read();

  const Mask& mask() const { return mask_; }
  const TensorView& key_lengths() const { return key_lengths_.view(); }
  const TensorView& boolean_mask() const { return boolean_.view(); }
  const TensorView& bias() const { return bias_.view(); }

 private:
  std::string causal_, window_, key_lengths_path_, boolean_path_, bias_path_;
  Mask mask_;
  io::Array key_lengths_, boolean_, bias_;
};

// "f32[2, 12, 128, 64]"
std::string shape_text(const TensorView& view);

}  // namespace polyhead::cli
