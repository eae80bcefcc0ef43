// Six score modifications: what each needs from its caller, and the function that makes it one. Each is a source of its own,
// which polyhead_add_score_mod compiles for every instruction set.
#pragma once

#include <cstdint>

#include "polyhead/score_tile.hpp"

// ALiBi: what is far away counts less, each head by a slope of its own. `offset` is where query 0 stands among the keys.
struct Alibi {
  const float* slopes;  // [heads]
  std::int32_t offset;
};
polyhead::ScoreMod alibi_mod(const Alibi& alibi);

// softcap: cap * tanh(score / cap).
struct Softcap {
  float cap;
};
polyhead::ScoreMod softcap_mod(const Softcap& softcap);

// A gate that opens with distance: score * tanh(rate * distance), for heads that look far.
struct TanhGate {
  const float* rates;  // [heads]
};
polyhead::ScoreMod tanh_gate_mod(const TanhGate& gate);

// Pixels of an image, row by row: what lies far away in rows and columns together counts less.
struct Manhattan {
  const float* weights;  // [heads]
  std::int32_t width;    // of the image
};
polyhead::ScoreMod manhattan_mod(const Manhattan& manhattan);

// Neighbourhood attention: a pixel sees those at most `radius` rows and columns away.
struct Neighbourhood {
  std::int32_t width, radius;
};
polyhead::ScoreMod neighbourhood_mod(const Neighbourhood& neighbourhood);

// Documents one after another in a batch item: a query sees its own. documents[i]: token i's, ascending.
struct Documents {
  const std::int32_t* documents;  // [length]
};
polyhead::ScoreMod document_mod(const Documents& documents);
