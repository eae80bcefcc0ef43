// What a plan says about itself: the facts once, and the two forms that they are told in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/mask.hpp"
#include "polyhead/relative_bias.hpp"

namespace polyhead::plan {

struct Explanation {
  std::string kernel, reason, isa, dtype;
  std::string key_dtype, out_dtype;  // of key and value, and of out; dtype names them where they are others than query's
  std::string rest_kernel;  // of the last rest_rows rows of a kv head, which would leave most of a vector idle; empty: none
  std::int64_t rest_rows = 0;
  std::string precision_asked, precision;  // and which bound the kernel is held to
  std::int64_t batch = 0, heads = 0, kv_heads = 0, query_length = 0, key_length = 0, head_dim = 0, value_dim = 0;
  Mask mask{};
  std::size_t summary_bytes = 0;  // of marks of a boolean mask that is shared; 0: none are made
  std::int64_t row_block = 0, key_block = 0;
  std::int64_t rows = 0, group = 0;  // of a kv head; query heads that share it
  std::int64_t key_split = 0;        // keys a split; 0: keys are not split
  std::string splits_run;            // how their parts are computed
  // Of all heads and batch items, at the largest shape. `tiles_at_run_time`: what a run brings that skips more; empty: nothing.
  std::int64_t tiles_skipped = 0, tiles_full = 0, tiles_partial = 0;
  std::string tiles_at_run_time;
  bool by_sequences = false;  // work is cut at run time
  std::int64_t pieces = 0, rows_per_piece = 0, nodes = 0;
  double one_thread_ms = 0, expected_ms = 0;  // estimates, on one thread and on the runtime's
  int threads = 1;
  bool runs_inline = false;
  double scale = 1, softcap = 0;
  std::string score_mod;  // the caller's own function's name; empty: none
  bool score_mod_classifies = false;
  // Of the tiles that structure does not skip, as its classifier has them; or why it was not asked.
  std::int64_t mod_tiles_skipped = 0, mod_tiles_full = 0, mod_tiles_partial = 0;
  std::string mod_not_asked;
  bool alibi = false, sink = false;
  RelativeBias relative_bias{};
  std::size_t workspace_bytes = 0;
  // What keeps the plan from something faster, a sentence each.
  std::vector<std::string> not_faster;
};

std::string to_text(const Explanation& explanation);
// One JSON object, of ASCII and without line ends.
std::string to_json(const Explanation& explanation);

}  // namespace polyhead::plan
