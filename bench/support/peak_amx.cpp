// AMX tiles. Written in assembly: intrinsics need flags for the whole file, and gcc 12 may drop the stores of a configuration
// that only _tile_loadconfig reads.
#include "dispatch/cpu_features.hpp"
#include "support/peak.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#endif

namespace polyhead::bench {

#if defined(__x86_64__) && defined(__linux__)

namespace {

// Linux gives the tiles' memory (8 KB a thread) to processes that ask: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
bool tiles_granted() {
  static const bool granted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return dispatch::cpu_features().amx_tile && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
}

// All eight tiles at their largest: 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
  TileConfiguration() {
    for (int tile = 0; tile < 8; ++tile) row_bytes[tile] = 64, rows[tile] = 16;
  }
};
static_assert(sizeof(TileConfiguration) == 64);

struct alignas(64) Tile {
  std::uint8_t bytes[16 * 64];
};

// Six chains of products of the same two tiles: the latency is 52 cycles, and one can start every 16. One statement, since
// tiles live only as long as nothing of the compiler's comes between; the compiler itself uses none, so none needs to be
// declared.
#define POLYHEAD_TILE_STEP(product, sum) product " %%tmm7, %%tmm6, %%tmm" sum "\n\t"
#define POLYHEAD_TILE_LOOP(product)                                                                                        \
  const TileConfiguration configuration;                                                                                   \
  std::int64_t rounds_left = rounds;                                                                                       \
  __asm__ volatile(                                                                                                        \
      "ldtilecfg (%1)\n\ttileloadd (%2,%4,1), %%tmm6\n\ttileloadd (%3,%4,1), %%tmm7\n\t"                                   \
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n\t" \
      "1:\n\t" POLYHEAD_TILE_STEP(product, "0") POLYHEAD_TILE_STEP(product, "1") POLYHEAD_TILE_STEP(product, "2")          \
          POLYHEAD_TILE_STEP(product, "3") POLYHEAD_TILE_STEP(product, "4")                                                \
              POLYHEAD_TILE_STEP(product, "5") "dec %0\n\tjnz 1b\n\ttilerelease"                                           \
      : "+r"(rounds_left)                                                                                                  \
      : "r"(&configuration), "r"(&left), "r"(&right), "r"(std::int64_t{64})                                                \
      : "cc", "memory");

double tile_bf16(std::int64_t rounds) {
  Tile left, right;
  const std::uint16_t quarter = 0x3e80;  // 0.25 as bf16
  for (std::size_t i = 0; i < sizeof left.bytes; i += 2) std::memcpy(left.bytes + i, &quarter, 2);
  right = left;
  POLYHEAD_TILE_LOOP("tdpbf16ps")
  return static_cast<double>(rounds) * 6 * (16.0 * 16 * 32 * 2);
}

double tile_int8(std::int64_t rounds) {
  Tile left, right;
  std::memset(left.bytes, 3, sizeof left.bytes);
  right = left;
  POLYHEAD_TILE_LOOP("tdpbssd")
  return static_cast<double>(rounds) * 6 * (16.0 * 16 * 64 * 2);
}

}  // namespace

PeakLoop amx_bf16_peak() {
  return {"amx", dispatch::cpu_features().amx_bf16 && tiles_granted() ? tile_bf16 : nullptr};
}

PeakLoop amx_int8_peak() {
  return {"amx", dispatch::cpu_features().amx_int8 && tiles_granted() ? tile_int8 : nullptr};
}

#else

PeakLoop amx_bf16_peak() {
  return {"amx", nullptr};
}

PeakLoop amx_int8_peak() {
  return {"amx", nullptr};
}

#endif

}  // namespace polyhead::bench
