// Which instruction set is taken: the best one that is built and runs here, or the one that was asked for.
#pragma once

#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::dispatch {

constexpr const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::reference:
      return "reference";
    case Isa::sse4:
      return "sse4";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::neon:
      return "neon";
    case Isa::sve:
      return "sve";
    case Isa::amx:
      return "amx";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::neon_bf16:
      return "neon_bf16";
  }
  return "unknown";
}

// The target whose kernels serve where `isa` has none of its own; reference is its own.
constexpr Isa next_plainer(Isa isa) noexcept {
  switch (isa) {
    case Isa::avx2:
      return Isa::sse4;
    case Isa::avx512:
      return Isa::avx2;
    case Isa::neon_bf16:
    case Isa::sve:
      return Isa::neon;
    case Isa::avx512_bf16:
    case Isa::amx:
      return Isa::avx512;
    default:
      return Isa::reference;
  }
}

// All targets, plainest first: where several run, the later one is the better one.
const std::vector<Isa>& all_isas();

// Whether a target's attention_bf16 multiplies pairs of bf16 as they are, with weights rounded to bf16 (decision 016).
constexpr bool multiplies_bf16_pairs(Isa isa) noexcept {
  return isa == Isa::avx512_bf16 || isa == Isa::neon_bf16;
}

// Whether a target is taken where nobody asks for one. The kernels for amx and neon_bf16 have not run on hardware yet: decision
// 011 says when this ends. avx512_bf16 is a matter of the CPU's speed (decision 016).
inline bool chosen_unasked(Isa isa, const CpuFeatures& features) noexcept {
  return isa != Isa::amx && (!multiplies_bf16_pairs(isa) || features.fast_bf16_products());
}

// "reference, sse4, avx2"
std::string names_of(const std::vector<Isa>& isas);

// Of `built`, those that a machine with these features runs; plainest first.
std::vector<Isa> runnable(const CpuFeatures& features, const std::vector<Isa>& built);

// The best of runnable() that is chosen_unasked, or the forced one. Errors: invalid_argument for a forced name that does not
// exist, unsupported for one that is not built or does not run here; the message says which, and what there is. Null or empty:
// nothing is forced.
Isa select_isa(const CpuFeatures& features, const std::vector<Isa>& built, const char* forced_name);

// The same for a target that was asked for by value: returns it, or throws unsupported.
Isa require_isa(const CpuFeatures& features, const std::vector<Isa>& built, Isa wanted);

// What is left of a choice once the operating system has been asked for what it gives only on request: `isa`, or, where it
// refuses, the next plainer one of `built` if nobody forced it. Errors: unsupported where somebody did. `ask` is
// request_tile_permission, and is called only for targets that need it.
Isa permitted_isa(Isa isa, const std::vector<Isa>& built, bool forced, bool (*ask)());

}  // namespace polyhead::dispatch
