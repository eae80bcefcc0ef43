// mask_marks, byte by byte.
#include "simd/contract/mask_marks.hpp"

#include "simd/contract/attention.hpp"
#include "simd/reference/reference.hpp"

namespace polyhead::simd::reference {
namespace {

void mark_mask(const MaskMarksArgs& args) {
  for (std::int64_t t = args.query_begin; t < args.query_end; ++t) {
    for (std::int64_t g = 0; g < args.heads; ++g) {
      for (std::int64_t s = args.key_begin; s < args.key_end; ++s) {
        std::uint8_t& mark = args.marks[s / AttentionArgs::keys_per_mark];
        const bool seen = *at(args.mask, t * args.stride + g * args.head_stride + s * args.key_stride) != 0;
        mark = static_cast<std::uint8_t>(seen ? mark | keys_seen : mark & ~keys_all);
      }
    }
  }
}

}  // namespace

extern const MaskMarksKernel mask_marks;
const MaskMarksKernel mask_marks = {"mask_marks_reference", mark_mask};

}  // namespace polyhead::simd::reference
