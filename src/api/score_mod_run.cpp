#include "api/score_mod_run.hpp"

#include <string>

#include "polyhead/error.hpp"

namespace polyhead::detail {

void refuse_place(const char* what, std::int64_t first, std::int64_t most) {
  throw Error(ErrorCode::unsupported, std::string("score_mod: ") + what + " is " + std::to_string(first) +
                                          ", expected at most " + std::to_string(most) +
                                          "; a function of whole tiles (polyhead/score_tile.hpp) has 64 bits");
}

}  // namespace polyhead::detail

namespace polyhead::api {

ScoreFunction choose_function(const ScoreFunctions& functions, Isa isa) {
  ScoreFunction best = functions.baseline;
  const auto take = [&](ScoreFunction function) {
    if (function) best = function;
  };
  switch (isa) {
    case Isa::reference:
    case Isa::neon:
    case Isa::neon_bf16:
    case Isa::sve:
      break;
    case Isa::sse4:
      take(functions.sse4);
      break;
    case Isa::avx2:
      take(functions.sse4);
      take(functions.avx2);
      break;
    case Isa::avx512:
    case Isa::avx512_bf16:
    case Isa::amx:
      take(functions.sse4);
      take(functions.avx2);
      take(functions.avx512);
      break;
  }
  return best;
}

ScoreModRun::ScoreModRun(const ScoreMod& mod, void* context, Isa isa) {
  if (mod.empty()) return;
  function_ = choose_function(mod.functions, isa);
  classify_ = mod.classify;
  context_ = context ? context : mod.context;
  for_kernel_.change = &ScoreModRun::change;
  // Also where the caller classes nothing: after an exception all that is left is skipped.
  for_kernel_.classify = &ScoreModRun::classify;
  for_kernel_.context = this;
}

void ScoreModRun::rethrow() {
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(exception_);
}

// The first one is kept; kernels are not left by exceptions, whose floating-point state and tiles must be put back.
void ScoreModRun::keep_exception() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  exception_ = std::current_exception();
  failed_.store(true, std::memory_order_release);
}

void ScoreModRun::change(void* self, const simd::ScoreModTile& tile) {
  auto& run = *static_cast<ScoreModRun*>(self);
  if (run.failed_.load(std::memory_order_relaxed)) return;
  const auto index = [](const simd::ScoreModIndex& from) { return ScoreIndex{from.first, from.of_line, from.of_lane}; };
  ScoreTile given;
  given.scores = tile.scores;
  given.lines = tile.lines;
  given.lanes = tile.lanes;
  given.line_stride = tile.line_stride;
  given.batch = tile.batch;
  given.head = index(tile.head);
  given.query = index(tile.query);
  given.key = index(tile.key);
  given.lanes_are_keys = tile.lanes_are_keys ? 1 : 0;
  given.is_full = tile.is_full ? 1 : 0;
  try {
    run.function_(given, run.context_);
  } catch (...) {
    run.keep_exception();
  }
}

simd::TileClass ScoreModRun::classify(void* self, const simd::ScoreModRange& range) {
  auto& run = *static_cast<ScoreModRun*>(self);
  if (run.failed_.load(std::memory_order_relaxed)) return simd::TileClass::skip;
  if (!run.classify_) return simd::TileClass::partial;
  ScoreRange given;
  given.batch = range.batch;
  given.head_begin = range.head_begin;
  given.head_end = range.head_end;
  given.query_begin = range.query_begin;
  given.query_end = range.query_end;
  given.key_begin = range.key_begin;
  given.key_end = range.key_end;
  try {
    switch (run.classify_(given, run.context_)) {
      case TileClass::skip:
        return simd::TileClass::skip;
      case TileClass::full:
        return simd::TileClass::full;
      case TileClass::partial:
        break;
    }
  } catch (...) {
    run.keep_exception();
    return simd::TileClass::skip;
  }
  return simd::TileClass::partial;
}

}  // namespace polyhead::api
