// One run's use of a caller's score modification: the function for the instruction set, and what it threw.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

#include "polyhead/runtime.hpp"
#include "polyhead/score_tile.hpp"
#include "simd/contract/score_mod.hpp"

namespace polyhead::api {

// The best of the functions for an instruction set.
ScoreFunction choose_function(const ScoreFunctions& functions, Isa isa);

class ScoreModRun {
 public:
  // `context`: null, or what the functions get instead of mod.context.
  ScoreModRun(const ScoreMod& mod, void* context, Isa isa);
  ScoreModRun(const ScoreModRun&) = delete;
  ScoreModRun& operator=(const ScoreModRun&) = delete;

  // For a kernel; null where there is no modification.
  const simd::ScoreMod* for_kernel() const noexcept { return function_ ? &for_kernel_ : nullptr; }
  // After the run: throws what a function has thrown first.
  void rethrow();

 private:
  void keep_exception() noexcept;
  static void change(void* self, const simd::ScoreModTile& tile);
  static simd::TileClass classify(void* self, const simd::ScoreModRange& range);

  ScoreFunction function_ = nullptr;
  TileClassifier classify_ = nullptr;
  void* context_ = nullptr;
  simd::ScoreMod for_kernel_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr exception_;
};

}  // namespace polyhead::api
