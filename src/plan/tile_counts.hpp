// How many tiles there are of each kind: by structure, and as a caller's classifier has it.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/attention_work.hpp"
#include "simd/contract/score_mod.hpp"

namespace polyhead::plan {

struct TileCounts {
  std::int64_t skipped = 0, full = 0, partial = 0;
  std::int64_t computed() const { return full + partial; }
};

// Of all heads and batch items: a block of a kernel's rows x a block of its keys each. Skipped: no row of the tile sees a key
// of it; full: each row sees all of them.
TileCounts count_tiles(const AttentionChoice& choice, const AttentionOperands& operands);

// What the classifier makes of the tiles that structure does not skip, asked as kernels ask. Nothing, and no question, where
// there are more than `most`.
std::optional<TileCounts> ask_classifier(const AttentionChoice& choice, const AttentionOperands& operands,
                                         const simd::ScoreMod& mod, std::int64_t most);

}  // namespace polyhead::plan
