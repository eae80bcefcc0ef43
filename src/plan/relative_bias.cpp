#include "plan/relative_bias.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "plan/attention_work.hpp"

namespace polyhead::plan {
namespace {

// A multiple of every kernel's key block: kernels read a bias from the start of the block in which a row's first key lies.
constexpr std::int64_t whole_block = 256;

const float* at(const float* base, std::ptrdiff_t bytes) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(base) + bytes);
}

std::int32_t bucket_of(const RelativeBias& bias, std::int64_t distance) {
  std::int64_t count = bias.buckets, first = 0;
  if (bias.bidirectional) {
    count /= 2;
    if (distance > 0) first = count;
  } else if (distance > 0) {
    distance = 0;
  }
  const std::int64_t far = std::abs(distance), own = count / 2;  // distances below `own` have buckets of their own
  if (far < own) return static_cast<std::int32_t>(first + far);
  const double share = std::log(static_cast<double>(far) / static_cast<double>(own)) /
                       std::log(static_cast<double>(bias.max_distance) / static_cast<double>(own));
  // Where the exact quotient is a whole number, rounding must not take it below.
  const double steps = std::floor(share * static_cast<double>(count - own) + 1e-9);
  return static_cast<std::int32_t>(first + std::min(own + static_cast<std::int64_t>(steps), count - 1));
}

}  // namespace

std::int64_t RelativeRows::near_offset(std::int64_t offset, std::int64_t query_length, std::int64_t key_length) const {
  return std::clamp(offset, -(query_length - 1) - reach, key_length - 1 + reach);
}

RelativeSpread::RelativeSpread(const RelativeBias& bias) : bias_(bias) {
  if (bias.kind != RelativeBias::Kind::t5) return;
  buckets_.reserve(static_cast<std::size_t>(2 * bias.max_distance + 1));
  for (std::int64_t distance = -bias.max_distance; distance <= bias.max_distance; ++distance) {
    buckets_.push_back(bucket_of(bias, distance));
  }
}

RelativeSpread::Place RelativeSpread::place(const AttentionOperands& o) const {
  Place place;
  if (bias_.kind == RelativeBias::Kind::swin) {
    place.rows.height = bias_.height;
    place.rows.width = bias_.width;
    place.floats = bias_.width * (2 * bias_.height - 1) * bias_.width;
  } else {
    place.rows.reach = bias_.max_distance;
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = std::numeric_limits<std::int64_t>::min();
    const std::int64_t items = o.sequences ? o.sequence_count : o.shape.batch;
    for (std::int64_t item = 0; item < items; ++item) {
      const AttentionShape own = own_shape(o, item);
      if (own.query_length == 0 || own.key_length == 0) continue;
      const KeyRange seen = key_range(o, item, 0, own.rows());
      const std::int64_t begin = o.mask.has_prefix ? 0 : seen.begin, end = o.mask.has_prefix ? own.key_length : seen.end;
      if (begin >= end) continue;
      const std::int64_t offset = place.rows.near_offset(seen.offset, own.query_length, own.key_length);
      least = std::min(least, begin / whole_block * whole_block - (own.query_length - 1) - offset);
      most = std::max(most, end - 1 - offset);
    }
    if (least > most) least = most = 0;  // no row sees a key
    place.rows.first = least;
    place.floats = most - least + 1;
  }
  place.rows.head_stride = place.floats * static_cast<std::ptrdiff_t>(sizeof(float));
  place.bytes = static_cast<std::size_t>(place.rows.head_stride) * static_cast<std::size_t>(o.shape.heads);
  return place;
}

RelativeRows RelativeSpread::spread(const Place& place, const RelativeTable& table, std::int64_t heads, float* memory) const {
  RelativeRows rows = place.rows;
  rows.rows = memory;
  for (std::int64_t head = 0; head < heads; ++head) {
    const float* const values = at(table.values, head * table.head_stride);
    float* to = memory + head * place.floats;
    if (bias_.kind == RelativeBias::Kind::t5) {
      const auto value = [&](std::int64_t distance) {
        return *at(values, buckets_[static_cast<std::size_t>(distance + bias_.max_distance)] * table.row_stride);
      };
      const std::int64_t near = std::clamp<std::int64_t>(-bias_.max_distance - rows.first, 0, place.floats);
      const std::int64_t far = std::clamp<std::int64_t>(bias_.max_distance + 1 - rows.first, near, place.floats);
      std::fill(to, to + near, value(-bias_.max_distance));
      for (std::int64_t i = near; i < far; ++i) to[i] = value(rows.first + i);
      std::fill(to + far, to + place.floats, value(bias_.max_distance));
      continue;
    }
    const std::int64_t height = bias_.height, width = bias_.width;
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t below = -(height - 1); below < height; ++below) {  // rows of the window that the key lies below
        const float* const line = at(values, ((height - 1 - below) * (2 * width - 1) + x + width - 1) * table.row_stride);
        for (std::int64_t u = 0; u < width; ++u) *to++ = *at(line, -u * table.row_stride);
      }
    }
  }
  return rows;
}

}  // namespace polyhead::plan
