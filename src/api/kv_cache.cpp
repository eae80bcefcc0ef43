#include "polyhead/kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/integer_list.hpp"
#include "api/kv_cache_state.hpp"
#include "cache/cache_file.hpp"
#include "dispatch/kernel_table.hpp"
#include "plan/attention_work.hpp"
#include "platform/rounding.hpp"

namespace polyhead {
namespace {

using api::check_no_overlap;
using api::check_output;
using api::check_tensor;
using api::fail;
using api::IntegerList;

// Tokens of a sequence are counted up to here: far from overflow, beyond any memory.
constexpr std::int64_t longest = std::int64_t{1} << 60;

void check_size(const char* name, std::int64_t value, std::int64_t least, std::int64_t most = longest) {
  if (value >= least && value <= most) return;
  fail(name, std::to_string(value), value < least ? std::to_string(least) + " or more" : std::to_string(most) + " or less");
}

void check_absent(const char* name, std::int64_t value, const char* kind) {
  if (value != 0) fail(name, std::to_string(value), std::string("0, since the cache is ") + kind);
}

RotarySpec resolve_rotary(RotarySpec rotary, std::int64_t head_dim) {
  if (static_cast<int>(rotary.style) > static_cast<int>(Rotary::half_split)) {
    fail("KvCacheSpec.rotary.style", std::to_string(static_cast<int>(rotary.style)), "a Rotary style");
  }
  if (rotary.style == Rotary::none) {
    if (rotary.dims != 0) fail("KvCacheSpec.rotary.dims", std::to_string(rotary.dims), "0, since the style is none");
    if (!rotary.frequencies.empty()) {
      fail("KvCacheSpec.rotary.frequencies", std::to_string(rotary.frequencies.size()) + " numbers",
           "none, since the style is none");
    }
    return rotary;
  }
  if (rotary.dims == 0) rotary.dims = head_dim;
  if (rotary.dims < 2 || rotary.dims > head_dim || rotary.dims % 2 != 0) {
    fail("KvCacheSpec.rotary.dims", std::to_string(rotary.dims),
         "an even number from 2 to head_dim (" + std::to_string(head_dim) + ")");
  }
  if (!(rotary.base >= 1.0) || !std::isfinite(rotary.base)) {
    fail("KvCacheSpec.rotary.base", std::to_string(rotary.base), "a finite number of at least 1");
  }
  if (rotary.frequencies.empty()) return rotary;
  if (static_cast<std::int64_t>(rotary.frequencies.size()) != rotary.dims / 2) {
    fail("KvCacheSpec.rotary.frequencies", std::to_string(rotary.frequencies.size()) + " numbers",
         "none or dims / 2 (" + std::to_string(rotary.dims / 2) + ")");
  }
  for (std::size_t i = 0; i < rotary.frequencies.size(); ++i) {
    // Above one turn and a half a position the same angles come with a smaller frequency; exactness is promised for these.
    if (std::fabs(rotary.frequencies[i]) <= 10.0) continue;
    fail(("KvCacheSpec.rotary.frequencies[" + std::to_string(i) + "]").c_str(), std::to_string(rotary.frequencies[i]),
         "-10 to 10 radians a position");
  }
  return rotary;
}

// Fills in what a spec leaves open, and checks it.
KvCacheSpec resolve(const KvCacheSpec& given) {
  KvCacheSpec spec = given;
  if (static_cast<int>(spec.kind) > static_cast<int>(CacheKind::paged)) {
    fail("KvCacheSpec.kind", std::to_string(static_cast<int>(spec.kind)), "a CacheKind");
  }
  if (spec.value_dim == 0) spec.value_dim = spec.head_dim;
  check_size("KvCacheSpec.sequences", spec.sequences, 1, cache::PagePool::most_pages);
  check_size("KvCacheSpec.kv_heads", spec.kv_heads, 1);
  check_size("KvCacheSpec.head_dim", spec.head_dim, 1);
  check_size("KvCacheSpec.value_dim", spec.value_dim, 1);
  const char* kind = spec.kind == CacheKind::contiguous ? "contiguous" : spec.kind == CacheKind::ring ? "a ring" : "paged";
  if (spec.kind == CacheKind::paged) {
    if (spec.page_tokens == 0) spec.page_tokens = 128;
    check_size("KvCacheSpec.page_tokens", spec.page_tokens, 1);
    check_size("KvCacheSpec.max_pages", spec.max_pages, 0, cache::PagePool::most_pages);
    check_size("KvCacheSpec.capacity", spec.capacity, 0);
  } else {
    check_absent("KvCacheSpec.page_tokens", spec.page_tokens, kind);
    check_absent("KvCacheSpec.max_pages", spec.max_pages, kind);
    check_size("KvCacheSpec.capacity", spec.capacity, 1);
  }
  if (spec.kind == CacheKind::ring) {
    if (spec.window < 1 || spec.window > spec.capacity) {
      fail("KvCacheSpec.window", std::to_string(spec.window),
           "1 to capacity (" + std::to_string(spec.capacity) + ") for a ring");
    }
  } else {
    check_absent("KvCacheSpec.window", spec.window, kind);
  }
  const std::vector<DType>& stored = dispatch::cache_dtypes();
  if (std::find(stored.begin(), stored.end(), spec.dtype) == stored.end()) {
    std::string names;
    for (const DType dtype : stored) names += std::string(names.empty() ? "" : ", ") + name(dtype);
    throw Error(ErrorCode::unsupported,
                std::string("KvCacheSpec.dtype is ") + name(spec.dtype) + "; this build's caches store " + names);
  }
  spec.rotary = resolve_rotary(std::move(spec.rotary), spec.head_dim);

  // Every offset that is formed must fit in 64 bits: those inside a page, and for whole sequences those of all of them.
  std::int64_t bytes = 0;
  bool fits = !__builtin_add_overflow(spec.head_dim, spec.value_dim, &bytes);
  const bool paged = spec.kind == CacheKind::paged;
  // Scales of i8 take no more than 8 bytes an element would.
  const std::int64_t element_bytes = spec.dtype == DType::i8 ? 8 : size_in_bytes(spec.dtype);
  for (const std::int64_t size : {element_bytes, spec.kv_heads, paged ? spec.page_tokens : spec.capacity,
                                  paged ? std::int64_t{1} : spec.sequences, std::int64_t{4}}) {
    fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  }
  if (!fits) fail("KvCacheSpec: its sizes overflow 64-bit offsets");
  return spec;
}

std::int64_t check_sequence(const char* name, const cache::Store& store, std::int64_t sequence) {
  const std::int64_t count = store.spec().sequences;
  if (sequence < 0 || sequence >= count) {
    fail(name, std::to_string(sequence), "0 to " + std::to_string(count - 1) + ", a sequence of the cache");
  }
  return sequence;
}

// Rows that are brought or taken may be of any type that rows are made of, whatever the cache stores.
void check_rows(const char* name, const TensorView& view, std::initializer_list<std::int64_t> shape) {
  if (!view.empty() && cache::find_element_type(view.dtype) == nullptr) fail(name, view.describe(), "f32, bf16 or f16");
  check_tensor(name, view, view.empty() ? DType::f32 : view.dtype, shape);
}

// Element strides of a [batch, heads, length, dim] view.
template <class Rows>
Rows rows_of(const TensorView& view) {
  const auto stride = [&](int i) { return view.shape[i] == 1 ? std::int64_t{0} : view.strides[i]; };
  return {cache::find_element_type(view.dtype),    view.data, stride(0), stride(1), stride(2),
          view.shape[3] == 1 ? 1 : view.strides[3]};
}

bool same_view(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.rank != b.rank || a.dtype != b.dtype) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

// The elements of a head that are not rotated.
void copy_rest(const cache::ElementRow& from, const cache::MutableRow& to, std::int64_t first, std::int64_t end) {
  constexpr std::int64_t at_once = 64;
  float numbers[at_once];
  for (; first < end; first += at_once) {
    const std::int64_t some = std::min(at_once, end - first);
    from.type->widen(from.at(first), from.step, some, numbers, 1);
    to.type->narrow(numbers, 1, some, to.at(first), to.step);
  }
}

// Without a list of sequences rows belong to the first ones.
void check_batch(const char* name, std::int64_t batch, const IntegerList& sequences, const KvCacheSpec& spec) {
  if (sequences.given() || batch <= spec.sequences) return;
  fail(name, std::to_string(batch),
       "at most the cache's sequences (" + std::to_string(spec.sequences) + "), since no list of sequences is given");
}

std::int64_t sequence_of(const IntegerList& sequences, std::int64_t b, const KvCacheSpec& spec) {
  return sequences.given() ? sequences.at(b, 0, spec.sequences - 1) : b;
}

}  // namespace

namespace detail {

KvCacheState::KvCacheState(std::unique_ptr<cache::Store> store) : store_(std::move(store)) {
  items.reserve(static_cast<std::size_t>(store_->spec().sequences));
  named.assign(static_cast<std::size_t>(store_->spec().sequences), 0);
}

}  // namespace detail

KvCache::KvCache(std::unique_ptr<detail::KvCacheState> state) : state_(std::move(state)) {}
KvCache::KvCache(const KvCacheSpec& spec)
    : state_(
          api::entry([&] { return std::make_unique<detail::KvCacheState>(std::make_unique<cache::Store>(resolve(spec))); })) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvCacheSpec& KvCache::spec() const noexcept {
  return state_->store().spec();
}

void KvCache::append(const CacheAppend& tokens) {
  cache::Store& store = state_->store();
  const KvCacheSpec& cache_spec = store.spec();
  check_rows("key", tokens.key, {-1, cache_spec.kv_heads, -1, cache_spec.head_dim});
  const std::int64_t batch = tokens.key.shape[0], length = tokens.key.shape[2];
  check_rows("value", tokens.value, {batch, cache_spec.kv_heads, length, cache_spec.value_dim});
  if (batch > cache_spec.sequences) {
    fail("key's batch", std::to_string(batch), "at most the cache's sequences (" + std::to_string(cache_spec.sequences) + ")");
  }
  const IntegerList sequences("sequences", tokens.sequences, batch), lengths("lengths", tokens.lengths, batch),
      positions("positions", tokens.positions, batch);
  const bool rotates = cache_spec.rotary.style != Rotary::none;
  if (positions.given() && !rotates) {
    fail("positions", "given", "no tensor, since the cache has no rotary embedding");
  }

  std::vector<cache::AppendItem>& items = state_->items;
  items.clear();
  for (std::int64_t b = 0; b < batch; ++b) {
    cache::AppendItem item;
    item.batch = b;
    item.sequence = sequence_of(sequences, b, cache_spec);
    item.tokens = lengths.given() ? lengths.at(b, 0, length) : length;
    const std::int64_t old_length = store.sequence(item.sequence).length;
    const std::int64_t capacity =
        cache_spec.kind == CacheKind::ring || cache_spec.capacity == 0 ? longest : cache_spec.capacity;
    if (item.tokens > capacity - old_length) {
      fail(lengths.given() ? ("lengths[" + std::to_string(b) + "]").c_str() : "key's length", std::to_string(item.tokens),
           "at most " + std::to_string(capacity - old_length) + ": sequence " + std::to_string(item.sequence) + " has " +
               std::to_string(old_length) + " tokens of a capacity of " + std::to_string(capacity));
    }
    item.position = old_length;
    if (rotates) {
      constexpr std::int64_t far = cache::Rotation::farthest;
      if (positions.given()) item.position = positions.at(b, -far, far);
      if (item.position + item.tokens > far) {
        fail("positions",
             "up to " + std::to_string(item.position + item.tokens) + " in sequence " + std::to_string(item.sequence),
             std::to_string(far) + " at most");
      }
    }
    items.push_back(item);
  }
  // Last, since it leaves marks that nothing may keep from being taken away.
  std::int64_t twice = -1;
  for (const cache::AppendItem& item : items) {
    std::uint8_t& named = state_->named[static_cast<std::size_t>(item.sequence)];
    if (named++ != 0) twice = item.sequence;
  }
  for (const cache::AppendItem& item : items) state_->named[static_cast<std::size_t>(item.sequence)] = 0;
  if (twice >= 0) fail("sequences", "a list that names sequence " + std::to_string(twice) + " twice", "one of different ones");

  api::entry([&] {
    store.append(items.data(), batch, rows_of<cache::RowSource>(tokens.key), rows_of<cache::RowSource>(tokens.value));
  });
}

void KvCache::trim(std::int64_t sequence, std::int64_t length) {
  cache::Store& store = state_->store();
  const cache::Sequence& held = store.sequence(check_sequence("sequence", store, sequence));
  const bool fits = length == 0 || (length >= held.first && length >= 0 && length <= held.length);
  if (!fits) {
    fail("length", std::to_string(length),
         (held.first > 0 ? "0, or " + std::to_string(held.first) + " to " : std::string("0 to ")) +
             std::to_string(held.length) + ", the tokens that sequence " + std::to_string(sequence) + " has");
  }
  store.trim(sequence, length);
}

void KvCache::fork(std::int64_t from, std::int64_t to, std::int64_t length) {
  cache::Store& store = state_->store();
  const cache::Sequence& source = store.sequence(check_sequence("from", store, from));
  check_sequence("to", store, to);
  if (length < -1 || length > source.length) {
    fail("length", std::to_string(length), "-1 for all, or 0 to " + std::to_string(source.length));
  }
  const bool ring = store.spec().kind == CacheKind::ring;
  if (ring && length != -1 && length != source.length) {
    fail("length", std::to_string(length), "-1 or " + std::to_string(source.length) + ", since a ring is copied whole");
  }
  api::entry([&] { store.fork(from, to, length == -1 ? source.length : length); });
}

void KvCache::rotate_queries(const TensorView& query, const TensorView& out, const TensorView& sequences,
                             const TensorView& positions) const {
  const cache::Store& store = state_->store();
  const KvCacheSpec& cache_spec = store.spec();
  if (cache_spec.rotary.style == Rotary::none) fail("the cache", "without rotary embedding", "one with it, to rotate queries");
  check_rows("query", query, {-1, -1, -1, cache_spec.head_dim});
  const std::int64_t batch = query.shape[0], heads = query.shape[1], length = query.shape[2];
  check_rows("out", out, {batch, heads, length, cache_spec.head_dim});
  check_output("out", out);
  if (!same_view(query, out)) check_no_overlap("out", out, "query", query);
  const IntegerList sequence_list("sequences", sequences, batch), position_list("positions", positions, batch);
  check_no_overlap("out", out, "sequences", sequences);
  check_no_overlap("out", out, "positions", positions);
  if (!position_list.given()) check_batch("query's batch", batch, sequence_list, cache_spec);
  constexpr std::int64_t far = cache::Rotation::farthest;
  const auto position_of = [&](std::int64_t b) {
    if (position_list.given()) return position_list.at(b, -far, far);
    return store.sequence(sequence_of(sequence_list, b, cache_spec)).length - length;
  };
  // All of them before anything is written.
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t position = position_of(b);
    if (position < -far || position + length > far) {
      fail("positions", std::to_string(position) + " to " + std::to_string(position + length),
           "within " + std::to_string(far) + " either way");
    }
  }
  if (query.element_count() == 0) return;

  const auto from = rows_of<cache::RowSource>(query);
  const auto to = rows_of<cache::RowTarget>(out);
  const cache::Rotation& rotation = store.rotation();
  cache::Rotation::Turns turns;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t position = position_of(b);
    for (std::int64_t t = 0; t < length; ++t) {
      for (std::int64_t first = 0; first < rotation.pairs(); first += cache::Rotation::pairs_at_once) {
        rotation.find(position + t, first, &turns);
        for (std::int64_t h = 0; h < heads; ++h) rotation.apply(turns, from.row(b, h, t), to.row(b, h, t));
      }
      for (std::int64_t h = 0; h < heads; ++h) {
        copy_rest(from.row(b, h, t), to.row(b, h, t), rotation.dims(), cache_spec.head_dim);
      }
    }
  }
}

std::int64_t KvCache::length(std::int64_t sequence) const {
  return state_->store().sequence(check_sequence("sequence", state_->store(), sequence)).length;
}

std::int64_t KvCache::first_token(std::int64_t sequence) const {
  return state_->store().sequence(check_sequence("sequence", state_->store(), sequence)).first;
}

void KvCache::read(std::int64_t sequence, std::int64_t first, const TensorView& key, const TensorView& value) const {
  const cache::Store& store = state_->store();
  const KvCacheSpec& cache_spec = store.spec();
  const cache::Sequence& held = store.sequence(check_sequence("sequence", store, sequence));
  std::int64_t count = key.empty() ? -1 : 0;
  if (!key.empty()) {
    check_rows("key", key, {cache_spec.kv_heads, -1, cache_spec.head_dim});
    check_output("key", key);
    count = key.shape[1];
  }
  if (!value.empty()) {
    check_rows("value", value, {cache_spec.kv_heads, count, cache_spec.value_dim});
    check_output("value", value);
    check_no_overlap("value", value, "key", key);
    count = value.shape[1];
  }
  if (count == -1) fail("key", "not given", "a tensor, since value is not given either");
  if (first < held.first || first > held.length || count > held.length - first) {
    fail("first", std::to_string(first) + " with " + std::to_string(count) + " tokens from there",
         "tokens from " + std::to_string(held.first) + " to " + std::to_string(held.length) + ", which the sequence has");
  }
  const auto target = [](const TensorView& view) -> cache::RowTarget {
    if (view.empty()) return {};
    return {cache::find_element_type(view.dtype),
            view.data,
            0,
            view.shape[0] == 1 ? 0 : view.strides[0],
            view.shape[1] == 1 ? 0 : view.strides[1],
            view.shape[2] == 1 ? 1 : view.strides[2]};
  };
  store.read(sequence, first, count, target(key), target(value));
}

std::int64_t KvCache::plan_key_length() const noexcept {
  const KvCacheSpec& cache_spec = spec();
  switch (cache_spec.kind) {
    case CacheKind::contiguous:
      return cache_spec.capacity;
    case CacheKind::ring:
      return plan::lasting_key_length(cache_spec.capacity);
    case CacheKind::paged:
      if (cache_spec.capacity > 0 || cache_spec.max_pages == 0) return cache_spec.capacity;
      return cache_spec.max_pages > longest / cache_spec.page_tokens ? longest : cache_spec.max_pages * cache_spec.page_tokens;
  }
  return 0;
}

std::int64_t KvCache::pages_in_use() const noexcept {
  return spec().kind == CacheKind::paged ? state_->store().pool().used() : 0;
}

std::int64_t KvCache::pages_allocated() const noexcept {
  return spec().kind == CacheKind::paged ? state_->store().pool().total() : 0;
}

void KvCache::reserve_pages(std::int64_t pages) {
  if (spec().kind != CacheKind::paged) fail("the cache", "not paged", "a paged one, to reserve pages");
  check_size("pages", pages, 0, cache::PagePool::most_pages);
  api::entry([&] { state_->store().make_free(pages - state_->store().pool().used()); });
}

std::size_t KvCache::memory_bytes() const noexcept {
  const cache::PagePool& pool = state_->store().pool();
  return static_cast<std::size_t>(pool.total()) * pool.page_bytes();
}

void KvCache::save(const std::string& path) const {
  api::entry([&] { cache::save_store(state_->store(), path); });
}

KvCache KvCache::load(const std::string& path) {
  return api::entry([&] { return KvCache(std::make_unique<detail::KvCacheState>(cache::load_store(path, resolve))); });
}

}  // namespace polyhead
