#include "cache/store.hpp"

#include <algorithm>
#include <cstring>

#include "platform/rounding.hpp"

namespace polyhead::cache {
namespace {

// No kernel begins a block of keys further than this before the first key that a row sees.
constexpr std::int64_t most_block_keys = 1024;

constexpr std::int64_t most_reserved_pages = 4096;

std::int64_t page_limit(const KvCacheSpec& spec) {
  if (spec.kind != CacheKind::paged) return spec.sequences;
  return spec.max_pages > 0 ? spec.max_pages : PagePool::most_pages;
}

// No more of a sequence's first tokens than this decide on its channels.
constexpr std::int64_t most_channel_tokens = 256;

PageShape page_shape(const KvCacheSpec& spec) {
  PageShape shape;
  shape.kv_heads = spec.kv_heads;
  shape.head_dim = spec.head_dim;
  shape.value_dim = spec.value_dim;
  shape.tokens = spec.kind == CacheKind::paged ? spec.page_tokens : spec.capacity;
  shape.element_bytes = size_in_bytes(spec.dtype);
  if (spec.dtype == DType::i8) shape.scale_bytes = sizeof(float);
  return shape;
}

// Vectors grow to a multiple of what they were, so that a growing sequence moves its table rarely.
template <typename T>
void make_room(std::vector<T>& vector, std::size_t size) {
  if (vector.capacity() < size) vector.reserve(std::max(size, 2 * vector.capacity()));
}

}  // namespace

Store::Store(const KvCacheSpec& spec)
    : spec_(spec),
      storage_(find_element_type(spec.dtype)),
      shape_(page_shape(spec_)),
      rotation_(spec.rotary.style, spec.rotary.dims, spec.rotary.base, spec.rotary.frequencies),
      pool_(static_cast<std::size_t>(shape_.bytes()), page_limit(spec_)) {
  sequences_.resize(static_cast<std::size_t>(spec_.sequences));
  turns_.resize(static_cast<std::size_t>(divide_up(rotation_.pairs(), Rotation::pairs_at_once)));
  row_.resize(static_cast<std::size_t>(std::max(spec_.head_dim, spec_.value_dim)));
  if (scaled()) {
    channels_.assign(static_cast<std::size_t>(spec_.sequences) * channels_of_sequence(), 0.0f);
    finders_ = {ChannelFinder(spec_.head_dim), ChannelFinder(spec_.value_dim)};
  }
  if (paged()) {
    // Where a sequence's length has a limit its tables never move, unless they are very long.
    const auto pages = static_cast<std::size_t>(std::min(divide_up(spec_.capacity, shape_.tokens), most_reserved_pages));
    for (Sequence& sequence : sequences_) {
      sequence.pages.reserve(pages);
      sequence.table.reserve(pages);
    }
    return;
  }
  pool_.make_free(spec_.sequences);
  const bool ring = spec_.kind == CacheKind::ring;
  const std::int64_t places = ring ? divide_up(spec_.capacity + most_block_keys, spec_.capacity) + 1 : 1;
  for (Sequence& sequence : sequences_) {
    sequence.pages.push_back(pool_.acquire());
    sequence.table.assign(static_cast<std::size_t>(places), pool_.data(sequence.pages[0]));
  }
}

std::int64_t Store::tokens_in_page(const Sequence& sequence, std::size_t index) const {
  return std::min(sequence.length - static_cast<std::int64_t>(index) * shape_.tokens, shape_.tokens);
}

// The pages that an append needs: those behind the last one, and one for a last page that others hold too and that is therefore
// copied. Where all holders of a page append, the last of them has it for itself.
std::int64_t Store::pages_wanted(const AppendItem* items, std::int64_t count) {
  std::int64_t wanted = 0;
  const auto last_page = [&](const AppendItem& item) -> const PageId* {
    const Sequence& sequence = sequences_[static_cast<std::size_t>(item.sequence)];
    return item.tokens > 0 && sequence.length % shape_.tokens != 0 ? &sequence.pages.back() : nullptr;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& sequence = sequences_[static_cast<std::size_t>(items[i].sequence)];
    wanted += divide_up(sequence.length + items[i].tokens, shape_.tokens) - static_cast<std::int64_t>(sequence.pages.size());
    if (const PageId* page = last_page(items[i])) wanted += pool_.leave(*page);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    if (const PageId* page = last_page(items[i])) pool_.stay(*page);
  }
  return wanted;
}

void Store::append(const AppendItem* items, std::int64_t count, const RowSource& key, const RowSource& value) {
  if (paged()) {
    const std::int64_t wanted = pages_wanted(items, count);
    for (std::int64_t i = 0; i < count; ++i) {
      Sequence& sequence = sequences_[static_cast<std::size_t>(items[i].sequence)];
      const auto pages = static_cast<std::size_t>(divide_up(sequence.length + items[i].tokens, shape_.tokens));
      make_room(sequence.pages, pages);
      make_room(sequence.table, pages);
    }
    pool_.make_free(wanted);
  }
  // From here on nothing fails.
  for (std::int64_t i = 0; i < count; ++i) {
    const AppendItem& item = items[i];
    if (item.tokens == 0) continue;
    Sequence& sequence = sequences_[static_cast<std::size_t>(item.sequence)];
    if (paged()) {
      const std::int64_t used = sequence.length % shape_.tokens;
      if (used != 0 && pool_.holders(sequence.pages.back()) > 1) {
        const PageId copy = pool_.acquire();
        copy_tokens(sequence.pages.back(), copy, used);
        pool_.release(sequence.pages.back());
        sequence.pages.back() = copy;
        sequence.table.back() = pool_.data(copy);
      }
      const auto pages = static_cast<std::size_t>(divide_up(sequence.length + item.tokens, shape_.tokens));
      while (sequence.pages.size() < pages) {
        sequence.pages.push_back(pool_.acquire());
        sequence.table.push_back(pool_.data(sequence.pages.back()));
      }
    }
    if (scaled() && sequence.length == 0) find_channels(item, key, value);
    write_tokens(sequence, item, key, value);
    sequence.length += item.tokens;
    if (spec_.kind == CacheKind::ring) sequence.first = std::max(sequence.first, sequence.length - shape_.tokens);
  }
}

void Store::write_tokens(const Sequence& sequence, const AppendItem& item, const RowSource& key,
                         const RowSource& value) noexcept {
  // What a ring would overwrite at once is not written.
  const std::int64_t skipped = spec_.kind == CacheKind::ring ? std::max<std::int64_t>(item.tokens - shape_.tokens, 0) : 0;
  const std::int64_t rotated = rotation_.dims();
  for (std::int64_t t = skipped; t < item.tokens; ++t) {
    const std::int64_t token = sequence.length + t, page = token / shape_.tokens, slot = token % shape_.tokens;
    char* const data = pool_.data(sequence.pages[paged() ? static_cast<std::size_t>(page) : 0]);
    find_turns(item.position + t);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      if (scaled()) {
        const auto write = [&](const float* row, const Channels& channels, std::int64_t count, std::int64_t at,
                               std::int64_t scale_at) {
          float scale;
          quantise_row(row, channels, count, reinterpret_cast<std::int8_t*>(data + at), &scale);
          std::memcpy(data + scale_at, &scale, sizeof scale);
        };
        write(load_row(key.row(item.batch, head, t), shape_.head_dim, rotated > 0), key_channels(item.sequence, head),
              shape_.head_dim, key_at(head, slot), key_scale_at(head, slot));
        write(load_row(value.row(item.batch, head, t), shape_.value_dim, false), value_channels(item.sequence, head),
              shape_.value_dim, value_at(head, slot), value_scale_at(head, slot));
        continue;
      }
      write_row(key.row(item.batch, head, t), shape_.head_dim, rotated > 0, data + key_at(head, slot));
      write_row(value.row(item.batch, head, t), shape_.value_dim, false, data + value_at(head, slot));
    }
  }
}

void Store::find_turns(std::int64_t position) noexcept {
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    rotation_.find(position, static_cast<std::int64_t>(i) * Rotation::pairs_at_once, &turns_[i]);
  }
}

// The channels of an empty sequence, from the first ones of its first tokens.
void Store::find_channels(const AppendItem& item, const RowSource& key, const RowSource& value) noexcept {
  float* channels = channels_.data() + static_cast<std::size_t>(item.sequence) * channels_of_sequence();
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (ChannelFinder& finder : finders_) finder.forget();
    for (std::int64_t t = 0; t < std::min(item.tokens, most_channel_tokens); ++t) {
      find_turns(item.position + t);
      finders_[0].add(load_row(key.row(item.batch, head, t), shape_.head_dim, rotation_.dims() > 0));
      finders_[1].add(load_row(value.row(item.batch, head, t), shape_.value_dim, false));
    }
    finders_[0].find(channels, channels + shape_.head_dim);
    channels += 2 * shape_.head_dim;
    finders_[1].find(channels, channels + shape_.value_dim);
    channels += 2 * shape_.value_dim;
  }
}

// A key or value of a head in f32, turned by turns_ where it rotates; it holds until the next one is asked for.
const float* Store::load_row(const ElementRow& from, std::int64_t count, bool rotates) noexcept {
  float* const row = row_.data();
  from.widen(count, row);
  if (rotates) {
    const ElementType* const f32 = find_element_type(DType::f32);
    for (const Rotation::Turns& turns : turns_) rotation_.apply(turns, {f32, row, 1}, {f32, row, 1});
  }
  return row;
}

// Rotation is in f32 whatever the elements are, and what is stored is rounded once.
void Store::write_row(const ElementRow& from, std::int64_t count, bool rotates, char* to) noexcept {
  if (!rotates && from.type == storage_ && from.step == 1) {
    std::memcpy(to, from.data, static_cast<std::size_t>(count * storage_->bytes));
    return;
  }
  storage_->narrow(load_row(from, count, rotates), 1, count, to, 1);
}

void Store::trim(std::int64_t index, std::int64_t length) noexcept {
  Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
  sequence.length = length;
  if (length == 0) sequence.first = 0;
  if (!paged()) return;
  const auto pages = static_cast<std::size_t>(divide_up(length, shape_.tokens));
  while (sequence.pages.size() > pages) {
    pool_.release(sequence.pages.back());
    sequence.pages.pop_back();
    sequence.table.pop_back();
  }
}

void Store::fork(std::int64_t from_index, std::int64_t to_index, std::int64_t length) {
  if (from_index == to_index) return trim(to_index, length);
  const Sequence& from = sequences_[static_cast<std::size_t>(from_index)];
  Sequence& to = sequences_[static_cast<std::size_t>(to_index)];
  const auto take_channels = [&] {
    const float* const first = channels_.data();
    const auto count = static_cast<std::ptrdiff_t>(scaled() ? channels_of_sequence() : 0);
    std::copy(first + from_index * count, first + (from_index + 1) * count, channels_.data() + to_index * count);
  };
  if (!paged()) {
    take_channels();
    copy_tokens(from.pages[0], to.pages[0], std::min(length, shape_.tokens));
    to.length = length;
    to.first = from.first;
    return;
  }
  const auto pages = static_cast<std::size_t>(divide_up(length, shape_.tokens));
  make_room(to.pages, pages);
  make_room(to.table, pages);
  take_channels();
  // Held before they are let go: the two may share pages already.
  for (std::size_t i = 0; i < pages; ++i) pool_.share(from.pages[i]);
  trim(to_index, 0);
  to.pages.assign(from.pages.begin(), from.pages.begin() + static_cast<std::ptrdiff_t>(pages));
  to.table.assign(from.table.begin(), from.table.begin() + static_cast<std::ptrdiff_t>(pages));
  to.length = length;
}

void Store::copy_tokens(PageId from, PageId to, std::int64_t count) noexcept {
  const char* const source = pool_.data(from);
  char* const target = pool_.data(to);
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    std::memcpy(target + key_at(head, 0), source + key_at(head, 0), static_cast<std::size_t>(count * shape_.key_stride()));
    std::memcpy(target + value_at(head, 0), source + value_at(head, 0),
                static_cast<std::size_t>(count * shape_.value_stride()));
    if (!scaled()) continue;
    const auto scale_bytes = static_cast<std::size_t>(count * shape_.scale_bytes);
    std::memcpy(target + key_scale_at(head, 0), source + key_scale_at(head, 0), scale_bytes);
    std::memcpy(target + value_scale_at(head, 0), source + value_scale_at(head, 0), scale_bytes);
  }
}

void Store::read(std::int64_t index, std::int64_t first, std::int64_t count, const RowTarget& key,
                 const RowTarget& value) const {
  const Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = first + i, page = token / shape_.tokens, slot = token % shape_.tokens;
    const char* const data = pool_.data(sequence.pages[paged() ? static_cast<std::size_t>(page) : 0]);
    const auto read_scaled = [data](const Channels& channels, std::int64_t at, std::int64_t scale_at, std::int64_t length,
                                    const MutableRow& to) {
      constexpr std::int64_t at_once = 64;
      float numbers[at_once], scale;
      std::memcpy(&scale, data + scale_at, sizeof scale);
      const auto* const integers = reinterpret_cast<const std::int8_t*>(data + at);
      for (std::int64_t done = 0; done < length; done += at_once) {
        const std::int64_t some = std::min(at_once, length - done);
        dequantise_row(integers + done, scale, {channels.mean + done, channels.channel + done}, some, numbers);
        to.type->narrow(numbers, 1, some, to.at(done), to.step);
      }
    };
    const auto read_row = [this](const char* from, std::int64_t length, const MutableRow& to) {
      if (to.type->dtype == DType::f32) {
        storage_->widen(from, 1, length, static_cast<float*>(to.data), to.step);
        return;
      }
      constexpr std::int64_t at_once = 64;
      float numbers[at_once];
      for (std::int64_t done = 0; done < length; done += at_once) {
        const std::int64_t some = std::min(at_once, length - done);
        storage_->widen(from + done * storage_->bytes, 1, some, numbers, 1);
        to.type->narrow(numbers, 1, some, to.at(done), to.step);
      }
    };
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      if (scaled()) {
        if (key.data) {
          read_scaled(key_channels(index, head), key_at(head, slot), key_scale_at(head, slot), shape_.head_dim,
                      key.row(0, head, i));
        }
        if (value.data) {
          read_scaled(value_channels(index, head), value_at(head, slot), value_scale_at(head, slot), shape_.value_dim,
                      value.row(0, head, i));
        }
        continue;
      }
      if (key.data) read_row(data + key_at(head, slot), shape_.head_dim, key.row(0, head, i));
      if (value.data) read_row(data + value_at(head, slot), shape_.value_dim, value.row(0, head, i));
    }
  }
}

SequenceView Store::view(std::int64_t index) const noexcept {
  const Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
  SequenceView view;
  view.table = sequence.table.data();
  view.length = sequence.length;
  if (scaled()) view.channels = channels_of_head(index, 0);
  if (spec_.kind == CacheKind::ring) {
    view.first_token = sequence.first;
    view.first_page = std::max<std::int64_t>(sequence.first - most_block_keys, 0) / shape_.tokens;
  }
  return view;
}

PageId Store::new_page() {
  pool_.make_free(1);
  return pool_.acquire();
}

void Store::restore(std::int64_t index, std::int64_t length, std::int64_t first, const PageId* pages, std::size_t count) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
  if (paged()) {
    sequence.pages.reserve(count);
    sequence.table.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      pool_.share(pages[i]);
      sequence.pages.push_back(pages[i]);
      sequence.table.push_back(pool_.data(pages[i]));
    }
  }
  sequence.length = length;
  sequence.first = first;
}

}  // namespace polyhead::cache
