// RelativeBias: a bias that a learned table gives by how query and key lie to each other, as in T5 and Swin.
//
// The table, f32 [table_rows(), heads], is given at run time. No [query, key] array is made of it: T5's takes memory for one
// number a distance and head, Swin's for 2 * width numbers a query and head.
#pragma once

#include <cstdint>

namespace polyhead {

struct RelativeBias {
  enum class Kind : std::uint8_t { none = 0, t5 = 1, swin = 2 };

  Kind kind = Kind::none;
  // T5. The bias of query t and key s is table[bucket(s - t - o), h], o being the causal offset (without causal offsets[b]
  // where given, else 0). With n = buckets, or half of them where bidirectional (the upper half is for keys behind the query)
  // and m = n / 2, a distance r = |s - t - o| has the bucket r where r < m, else
  //     min(m + floor(log(r / m) / log(max_distance / m) * (n - m)), n - 1),   in exact arithmetic.
  // Where not bidirectional, every key behind the query has bucket 0. T5's scores are not scaled: give scale 1 for it.
  std::int64_t buckets = 0;
  std::int64_t max_distance = 0;
  bool bidirectional = true;
  // Swin. Queries and keys are the positions of a height x width window, row by row; query (y, x) and key (v, u) have the bias
  // table[(y - v + height - 1) * (2 * width - 1) + x - u + width - 1, h].
  std::int64_t height = 0, width = 0;

  // An encoder's is bidirectional, a decoder's is not. buckets: 2 or more, where bidirectional 4 or more and even;
  // max_distance: above the distances that have buckets of their own, n / 2.
  static constexpr RelativeBias t5(std::int64_t buckets = 32, std::int64_t max_distance = 128, bool bidirectional = true) {
    RelativeBias bias;
    bias.kind = Kind::t5;
    bias.buckets = buckets;
    bias.max_distance = max_distance;
    bias.bidirectional = bidirectional;
    return bias;
  }
  static constexpr RelativeBias swin(std::int64_t height, std::int64_t width) {
    RelativeBias bias;
    bias.kind = Kind::swin;
    bias.height = height;
    bias.width = width;
    return bias;
  }

  constexpr bool given() const { return kind != Kind::none; }
  constexpr std::int64_t table_rows() const {
    return kind == Kind::t5 ? buckets : kind == Kind::swin ? (2 * height - 1) * (2 * width - 1) : 0;
  }
};

}  // namespace polyhead
