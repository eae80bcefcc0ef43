// Products of operands in pieces (bf16_pieces-inl.h), 32 x 32 results at a time: what the kernels on tiles have in common.
#pragma once

#include "simd/x86/bf16_pieces-inl.h"
#include "simd/x86/tiles_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kProductColumns = 32;  // of results: two tiles
constexpr std::ptrdiff_t kResultStride = kProductColumns * sizeof(float);

// 32 x 32 results, C = A B or C += A B, as two by two tiles: `count` PieceTiles deep.
struct Product {
  const unsigned char *a, *b;
  size_t second_a, step_a, second_b, step_b;  // bytes to the second tile's pieces, and to the next in depth
  size_t count;
  float* results;  // [32][32], 64-byte aligned
  bool adds;
};

// Work for the vector units between tile products, in small portions: Next() does one, or nothing when none is left.
struct NothingBeside {
  HWY_INLINE void Next() {}
};

// Three products take half as long as six: then a portion goes with each tile product, not one with two. One takes so little
// that `beside` is asked at every tile product, the first ones included, and decides how much it does.
template <size_t kPieces, class Tiles, class Beside>
HWY_INLINE void DotOfFour(Tiles& tiles, Beside& beside) {
  tiles.template Dot<0, 4, 6>();
  beside.Next();
  tiles.template Dot<1, 4, 7>();
  if constexpr (kPieces <= 2) beside.Next();
  tiles.template Dot<2, 5, 6>();
  beside.Next();
  tiles.template Dot<3, 5, 7>();
  if constexpr (kPieces <= 2) beside.Next();
}

HWY_INLINE float* TileOf(float* results, int tile) {
  return results + tile / 2 * 16 * kProductColumns + tile % 2 * 16;
}

// A store waits for the products of its tile, and every younger load waits for the store. So results are stored only when
// their register is needed again, each just before its next product.
template <int kTile, class Tiles>
HWY_INLINE void BeginTile(Tiles& tiles, const Product& product, float* unstored) {
  tiles.template Store<kTile>(TileOf(unstored, kTile), kResultStride);
  if (product.adds) {
    tiles.template Load<kTile>(TileOf(product.results, kTile), kResultStride);
  } else {
    tiles.template Zero<kTile>();
  }
  tiles.template Dot<kTile, 4 + kTile / 2, 6 + kTile % 2>();
}

template <class Tiles>
HWY_INLINE void StoreTiles(Tiles& tiles, float* results) {
  tiles.template Store<0>(TileOf(results, 0), kResultStride);
  tiles.template Store<1>(TileOf(results, 1), kResultStride);
  tiles.template Store<2>(TileOf(results, 2), kResultStride);
  tiles.template Store<3>(TileOf(results, 3), kResultStride);
}

// Tiles 0 to 3: sums, 4 and 5: A, which passes through the first-level cache once, 6 and 7: B, which stays there.
template <class Tiles>
HWY_INLINE void LoadA(Tiles& tiles, const unsigned char* first, const unsigned char* second, size_t piece) {
  tiles.template LoadPassing<4>(first + piece * kTileBytes, kTileRowBytes);
  tiles.template LoadPassing<5>(second + piece * kTileBytes, kTileRowBytes);
}
template <class Tiles>
HWY_INLINE void LoadB(Tiles& tiles, const unsigned char* first, const unsigned char* second, size_t piece) {
  tiles.template Load<6>(first + piece * kTileBytes, kTileRowBytes);
  tiles.template Load<7>(second + piece * kTileBytes, kTileRowBytes);
}

// Products of pieces in an order that begins with a small one and loads few: A's 0 by B's 2, 1 and 0, A's 1 by B's 0 and 1, A's
// 2 by B's 0; of two pieces, 0 by 1 and 0, 1 by 0, where the product is to be `kWhole` 1 by 1 before them; of one, 0 by 0.
// `unstored`: the last product's results, still in tiles 0 to 3.
template <size_t kPieces, bool kWhole = false, class Tiles, class Beside>
HWY_INLINE void MultiplyPieces(Tiles& tiles, const Product& product, float* unstored, Beside& beside) {
  const unsigned char *a0 = product.a, *b0 = product.b;
  for (size_t i = 0; i < product.count; ++i) {
    const unsigned char *a1 = a0 + product.second_a, *b1 = b0 + product.second_b;
    LoadA(tiles, a0, a1, kWhole ? 1 : 0);
    LoadB(tiles, b0, b1, kPieces - 1);
    if (i == 0) {
      BeginTile<0>(tiles, product, unstored);
      if constexpr (kPieces == 1) beside.Next();
      BeginTile<1>(tiles, product, unstored);
      if constexpr (kPieces == 1) beside.Next();
      BeginTile<2>(tiles, product, unstored);
      if constexpr (kPieces == 1) beside.Next();
      BeginTile<3>(tiles, product, unstored);
      if constexpr (kPieces == 1) beside.Next();
    } else {
      DotOfFour<kPieces>(tiles, beside);
    }
    static_assert(!kWhole || kPieces == 2, "four products of two pieces");
    if constexpr (kWhole) {
      LoadA(tiles, a0, a1, 0);
      DotOfFour<kPieces>(tiles, beside);
    }
    if constexpr (kPieces == 3) {
      LoadB(tiles, b0, b1, 1);
      DotOfFour<kPieces>(tiles, beside);
    }
    if constexpr (kPieces >= 2) {
      LoadB(tiles, b0, b1, 0);
      DotOfFour<kPieces>(tiles, beside);
      LoadA(tiles, a0, a1, 1);
      DotOfFour<kPieces>(tiles, beside);
    }
    if constexpr (kPieces == 3) {
      LoadB(tiles, b0, b1, 1);
      DotOfFour<kPieces>(tiles, beside);
      LoadA(tiles, a0, a1, 2);
      LoadB(tiles, b0, b1, 0);
      DotOfFour<kPieces>(tiles, beside);
    }
    a0 += product.step_a;
    b0 += product.step_b;
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
