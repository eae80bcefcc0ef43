// Tile operations as a policy of the kernels that use them: here the instructions themselves. A kernel calls, on an object of
// the policy (tiles_emulated-inl.h is the other one):
//
//   Configure()            all eight tiles get 16 rows of 64 bytes
//   Zero<c>()              tile c = 0
//   Load<t>(from, stride), LoadPassing<t>(from, stride)    rows `stride` bytes apart; Passing: data that is soon done with
//   Store<t>(to, stride)
//   Dot<c, a, b>()         C[m][n] += sum over k < 16 of A[m][2k] B[k][2n] + A[m][2k + 1] B[k][2n + 1], A and B bf16, C f32
//   Release()
//
// Inline assembly, not intrinsics: these need a -m flag for the whole file, or a target attribute that Highway's regions lack,
// and gcc 12 takes _tile_loadconfig to read 8 bytes and may drop the stores to the other 56. Tiles live in registers that the
// compiler never touches, so none has to be declared; every statement is volatile and a barrier for memory, which keeps other
// work between tile operations where the source puts it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kTileRows = 16;
constexpr size_t kTileRowBytes = 64;
constexpr size_t kTileBytes = kTileRows * kTileRowBytes;

class HardwareTiles {
 public:
  HWY_INLINE void Configure() {
    struct Configuration {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    };
    static_assert(sizeof(Configuration) == 64, "what LDTILECFG reads");
    Configuration configuration;
    for (size_t tile = 0; tile < 8; ++tile) {
      configuration.row_bytes[tile] = static_cast<std::uint16_t>(kTileRowBytes);
      configuration.rows[tile] = static_cast<std::uint8_t>(kTileRows);
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  HWY_INLINE void Release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  HWY_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile) : "memory");
  }
  template <int kTile>
  HWY_INLINE void Load(const void* from, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  HWY_INLINE void LoadPassing(const void* from, std::ptrdiff_t stride) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  HWY_INLINE void Store(void* to, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  // AT&T order: the last operand is the sum, the one before it A.
  template <int kSum, int kA, int kB>
  HWY_INLINE void Dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB) : "memory");
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
