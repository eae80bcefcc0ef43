// What a cache holds: appended, trimmed, forked, shared and copied on write, compared with a plain list of tokens; and what it
// refuses.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_model.hpp"
#include "polyhead/error.hpp"
#include "support/environment.hpp"

namespace polyhead::testing {
namespace {

std::vector<KvCacheSpec> layouts() {
  std::vector<KvCacheSpec> all = {
      cache_spec(CacheKind::contiguous, 4, 2, 5, 3, 70), cache_spec(CacheKind::contiguous, 1, 1, 8, 8, 200),
      cache_spec(CacheKind::ring, 3, 2, 4, 6, 7),        cache_spec(CacheKind::ring, 3, 1, 4, 4, 64),
      cache_spec(CacheKind::ring, 2, 2, 3, 3, 1),
  };
  for (const std::int64_t page_tokens : {1, 2, 3, 7, 16, 128})
    all.push_back(cache_spec(CacheKind::paged, 5, 2, 4, 3, 0, page_tokens));
  all.push_back(cache_spec(CacheKind::paged, 5, 2, 4, 3, 40, 3));
  for (const DType dtype : attention_dtypes()) {
    if (dtype == DType::f32) continue;
    for (const std::size_t i : {0u, 2u, 7u}) {
      all.push_back(all[i]);
      all.back().dtype = dtype;
    }
  }
  return all;
}

// Random calls, each followed by a look at everything.
TEST(KvCache, HoldsWhatAListOfTokensHolds) {
  Random random(11);
  for (const KvCacheSpec& spec : layouts()) {
    KvCache cache(spec);
    CacheModel model(spec);
    for (int step = 0; step < 120; ++step) {
      const std::int64_t kind = random.integer(0, 9);
      const std::int64_t one = random.integer(0, spec.sequences - 1), other = random.integer(0, spec.sequences - 1);
      if (kind < 6) {
        std::vector<std::int64_t> which(static_cast<std::size_t>(spec.sequences)), counts;
        std::iota(which.begin(), which.end(), 0);
        for (std::size_t i = which.size(); i > 1; --i) {
          std::swap(which[i - 1], which[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
        }
        which.resize(static_cast<std::size_t>(random.integer(1, spec.sequences)));
        for (const std::int64_t sequence : which) {
          const std::int64_t room =
              spec.kind == CacheKind::ring || spec.capacity == 0 ? 1000 : spec.capacity - cache.length(sequence);
          counts.push_back(std::min(room, random.chance(0.5) ? 1 : random.integer(0, 20)));
        }
        const NewTokens fresh = new_tokens(spec, which, counts, random);
        cache.append(fresh.append());
        model.append(fresh);
      } else if (kind < 8) {
        const std::int64_t length = random.chance(0.1) ? 0 : random.integer(cache.first_token(one), cache.length(one));
        cache.trim(one, length);
        model.trim(one, length);
      } else {
        const std::int64_t length =
            spec.kind == CacheKind::ring || random.chance(0.5) ? -1 : random.integer(0, cache.length(one));
        cache.fork(one, other, length);
        model.fork(one, other, length);
      }
      ASSERT_TRUE(model.matches(cache)) << "step " << step;
    }
    if (spec.kind == CacheKind::paged) {
      for (std::int64_t i = 0; i < spec.sequences; ++i) cache.trim(i, 0);
      EXPECT_EQ(cache.pages_in_use(), 0) << describe(spec);
    }
  }
}

TEST(KvCache, WithoutListsTheFirstSequencesGetAllTokens) {
  Random random(12);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 3, 2, 4, 4, 0, 4);
  KvCache cache(spec);
  CacheModel model(spec);
  NewTokens fresh = new_tokens(spec, {0, 1}, {9, 9}, random);
  CacheAppend tokens;
  tokens.key = slice(fresh.key, 2, 0, 9);
  tokens.value = slice(fresh.value, 2, 0, 9);
  cache.append(tokens);
  model.append(fresh);
  EXPECT_TRUE(model.matches(cache));
}

TEST(KvCache, ForkedSequencesSharePagesUntilOneWrites) {
  Random random(13);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 4, 1, 4, 4, 0, 8);
  KvCache cache(spec);
  CacheModel model(spec);
  const auto append = [&](const std::vector<std::int64_t>& which, const std::vector<std::int64_t>& counts) {
    const NewTokens fresh = new_tokens(spec, which, counts, random);
    cache.append(fresh.append());
    model.append(fresh);
    EXPECT_TRUE(model.matches(cache));
  };
  const auto fork = [&](std::int64_t from, std::int64_t to, std::int64_t length) {
    cache.fork(from, to, length);
    model.fork(from, to, length);
    EXPECT_TRUE(model.matches(cache));
  };
  append({0}, {20});
  EXPECT_EQ(cache.pages_in_use(), 3);
  fork(0, 1, -1);
  fork(0, 2, -1);
  EXPECT_EQ(cache.pages_in_use(), 3);
  append({1}, {1});  // the page that is half full is copied, the full ones are not
  EXPECT_EQ(cache.pages_in_use(), 4);
  append({0, 2}, {1, 1});  // the last holder writes in place
  EXPECT_EQ(cache.pages_in_use(), 5);
  fork(2, 3, 16);  // full pages alone: nothing to copy
  append({3}, {1});
  EXPECT_EQ(cache.pages_in_use(), 6);
  cache.trim(0, 9);  // a full page becomes one that is written to, and others hold it
  model.trim(0, 9);
  EXPECT_EQ(cache.pages_in_use(), 5);
  append({0}, {2});
  EXPECT_EQ(cache.pages_in_use(), 6);
  for (std::int64_t i = 0; i < 4; ++i) cache.trim(i, 0);
  EXPECT_EQ(cache.pages_in_use(), 0);
}

TEST(KvCache, PagesAtTheirEndLeaveTheCacheAsItWas) {
  Random random(14);
  KvCacheSpec spec = cache_spec(CacheKind::paged, 3, 2, 4, 4, 0, 4);
  spec.max_pages = 6;
  KvCache cache(spec);
  CacheModel model(spec);
  const auto append = [&](const std::vector<std::int64_t>& which, const std::vector<std::int64_t>& counts) {
    const NewTokens fresh = new_tokens(spec, which, counts, random);
    cache.append(fresh.append());
    model.append(fresh);
  };
  const auto refuse = [&](const std::vector<std::int64_t>& which, const std::vector<std::int64_t>& counts) {
    const std::int64_t in_use = cache.pages_in_use();
    const NewTokens fresh = new_tokens(spec, which, counts, random);
    try {
      cache.append(fresh.append());
      ADD_FAILURE() << "an append beyond max_pages was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_NE(std::string(error.what()).find("max_pages (6)"), std::string::npos) << error.what();
    }
    EXPECT_EQ(cache.pages_in_use(), in_use);
    EXPECT_TRUE(model.matches(cache));
  };
  append({0, 1}, {6, 10});  // 2 + 3 pages
  refuse({2, 0}, {4, 3});   // the first sequence alone would fit
  refuse({2}, {5});
  append({2}, {4});
  refuse({2}, {1});
  append({0}, {2});  // its page has room
  cache.trim(2, 0), model.trim(2, 0);
  cache.fork(1, 2), model.fork(1, 2, -1);  // shared: no page more
  append({1}, {1});                        // copied: the sixth
  refuse({0}, {1});
  append({2}, {2});
  cache.trim(1, 0), model.trim(1, 0);
  append({0}, {4});
  EXPECT_TRUE(model.matches(cache));
  EXPECT_LE(cache.pages_allocated(), 6);
  // Both holders of a page append: the last one writes in place, so one page is enough.
  KvCacheSpec tight = spec;
  tight.max_pages = 2;
  KvCache pair(tight);
  NewTokens fresh = new_tokens(tight, {0}, {2}, random);
  pair.append(fresh.append());
  pair.fork(0, 1);
  fresh = new_tokens(tight, {0, 1}, {1, 1}, random);
  EXPECT_NO_THROW(pair.append(fresh.append()));
}

TEST(KvCache, ReservedPagesAreThere) {
  Random random(15);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 1, 600, 600, 0, 128);
  KvCache cache(spec);
  cache.reserve_pages(7);
  const std::int64_t allocated = cache.pages_allocated();
  EXPECT_GE(allocated, 7);
  EXPECT_EQ(cache.memory_bytes(), static_cast<std::size_t>(allocated) * 128 * 1200 * 4);
  cache.append(new_tokens(spec, {0}, {7 * 128}, random).append());
  EXPECT_EQ(cache.pages_allocated(), allocated);
  EXPECT_EQ(cache.pages_in_use(), 7);
}

// ---- what is refused

std::string message_of(const std::function<void()>& call, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

#define EXPECT_NAMED(call, text)                                                        \
  do {                                                                                  \
    const std::string message = message_of([&] { call; });                              \
    EXPECT_NE(message.find(text), std::string::npos) << message << "\nlacks: " << text; \
  } while (false)

TEST(KvCache, ASpecIsCheckedFieldByField) {
  const KvCacheSpec contiguous = cache_spec(CacheKind::contiguous, 2, 2, 8, 8, 16),
                    ring = cache_spec(CacheKind::ring, 2, 2, 8, 8, 16), paged = cache_spec(CacheKind::paged, 2, 2, 8, 8, 0, 4);
  const auto with = [](KvCacheSpec spec, const std::function<void(KvCacheSpec&)>& change) {
    change(spec);
    return spec;
  };
  using Spec = KvCacheSpec;
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.kind = static_cast<CacheKind>(3); })), "KvCacheSpec.kind is 3");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.sequences = 0; })), "KvCacheSpec.sequences is 0");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.kv_heads = -1; })), "KvCacheSpec.kv_heads is -1");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.head_dim = 0; })), "KvCacheSpec.head_dim is 0");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.value_dim = -2; })), "KvCacheSpec.value_dim is -2");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.page_tokens = -1; })), "KvCacheSpec.page_tokens is -1");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.max_pages = -1; })), "KvCacheSpec.max_pages is -1");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.window = 3; })), "KvCacheSpec.window is 3");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.kv_heads = s.head_dim = std::int64_t{1} << 40; })), "overflow");
  EXPECT_NAMED(KvCache(with(contiguous, [](Spec& s) { s.capacity = 0; })), "KvCacheSpec.capacity is 0");
  EXPECT_NAMED(KvCache(with(contiguous, [](Spec& s) { s.page_tokens = 4; })), "KvCacheSpec.page_tokens is 4");
  EXPECT_NAMED(KvCache(with(contiguous, [](Spec& s) { s.max_pages = 4; })), "KvCacheSpec.max_pages is 4");
  EXPECT_NAMED(KvCache(with(ring, [](Spec& s) { s.window = 0; })), "KvCacheSpec.window is 0");
  EXPECT_NAMED(KvCache(with(ring, [](Spec& s) { s.window = 17; })), "KvCacheSpec.window is 17, expected 1 to capacity (16)");
  EXPECT_NAMED(KvCache(with(paged, [](Spec& s) { s.rotary.dims = 4; })), "KvCacheSpec.rotary.dims is 4");
  EXPECT_NAMED(KvCache(with(paged,
                            [](Spec& s) {
                              s.rotary.style = Rotary::half_split;
                              s.rotary.dims = 5;
                            })),
               "KvCacheSpec.rotary.dims is 5, expected an even number from 2 to head_dim (8)");
  EXPECT_NAMED(KvCache(with(paged,
                            [](Spec& s) {
                              s.rotary.style = Rotary::half_split;
                              s.rotary.base = 0.5;
                            })),
               "KvCacheSpec.rotary.base is 0.5");
  EXPECT_NAMED(KvCache(with(paged,
                            [](Spec& s) {
                              s.rotary.style = Rotary::interleaved;
                              s.rotary.frequencies = {1.0, 2.0};
                            })),
               "KvCacheSpec.rotary.frequencies is 2 numbers, expected none or dims / 2 (4)");
  EXPECT_NAMED(KvCache(with(paged,
                            [](Spec& s) {
                              s.rotary.style = Rotary::interleaved;
                              s.rotary.frequencies = {1.0, 2.0, std::numeric_limits<double>::quiet_NaN(), 0.0};
                            })),
               "KvCacheSpec.rotary.frequencies[2] is nan");
  EXPECT_NE(message_of([&] { KvCache(with(paged, [](Spec& s) { s.dtype = DType::i64; })); }, ErrorCode::unsupported)
                .find("KvCacheSpec.dtype is i64"),
            std::string::npos);
}

TEST(KvCache, RefusedCallsNameTheArgumentAndChangeNothing) {
  Random random(16);
  const KvCacheSpec spec = cache_spec(CacheKind::contiguous, 3, 2, 4, 6, 10);
  KvCache cache(spec);
  CacheModel model(spec);
  NewTokens fresh = new_tokens(spec, {0, 1, 2}, {4, 8, 0}, random);
  cache.append(fresh.append());
  model.append(fresh);
  CacheAppend right = fresh.append();
  right.lengths = {};
  right.key = slice(fresh.key, 2, 0, 2);
  right.value = slice(fresh.value, 2, 0, 2);
  const Tensor four(DType::f32, {2, 3, 4, 4}), wide(DType::f32, {3, 2, 2, 5}), batches(DType::f32, {4, 2, 2, 4}),
      batch_values(DType::f32, {4, 2, 2, 6});
  const auto with = [&](const std::function<void(CacheAppend&)>& change) {
    CacheAppend tokens = right;
    change(tokens);
    return tokens;
  };
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.key = {}; })), "key is not given");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.key = four; })), "key is f32[2, 3, 4, 4]");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.value = wide; })), "value is f32[3, 2, 2, 5]");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.key = batches, a.value = batch_values; })), "key's batch is 4");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.sequences = list_of(DType::i32, {0, 1}); })), "sequences is i32[2]");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.sequences = list_of(DType::i32, {0, 3, 1}); })), "sequences[1] is 3");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.sequences = list_of(DType::i64, {2, 0, 2}); })), "sequence 2 twice");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.lengths = list_of(DType::i32, {0, 3, 1}); })), "lengths[1] is 3");
  EXPECT_NAMED(cache.append(with([&](CacheAppend& a) { a.positions = list_of(DType::i32, {0, 3, 1}); })), "positions is given");
  EXPECT_TRUE(model.matches(cache));
  right.key = slice(fresh.key, 2, 0, 3);
  right.value = slice(fresh.value, 2, 0, 3);
  EXPECT_NAMED(cache.append(right), "key's length is 3, expected at most 2: sequence 1 has 8 tokens of a capacity of 10");
  right.lengths = list_of(DType::i32, {3, 3, 3});
  EXPECT_NAMED(cache.append(right), "lengths[1] is 3, expected at most 2");
  EXPECT_TRUE(model.matches(cache));
  // The marks of a refused list are gone: the same sequences can be named again.
  right.lengths = list_of(DType::i32, {1, 1, 1});
  EXPECT_NO_THROW(cache.append(right));

  EXPECT_NAMED(cache.trim(3, 0), "sequence is 3, expected 0 to 2");
  EXPECT_NAMED(cache.trim(0, 6), "length is 6, expected 0 to 5");
  EXPECT_NAMED(cache.trim(0, -1), "length is -1");
  EXPECT_NAMED(cache.fork(-1, 0), "from is -1");
  EXPECT_NAMED(cache.fork(0, 9), "to is 9");
  EXPECT_NAMED(cache.fork(0, 1, 6), "length is 6");
  EXPECT_NAMED(static_cast<void>(cache.length(7)), "sequence is 7");
  EXPECT_NAMED(cache.reserve_pages(2), "not paged");
  const Tensor key(DType::f32, {2, 3, 4}), value(DType::f32, {2, 4, 6});
  EXPECT_NAMED(cache.read(0, 0, {}, {}), "key is not given");
  EXPECT_NAMED(cache.read(0, 0, key, value), "value is f32[2, 4, 6]");
  EXPECT_NAMED(cache.read(0, 3, key, {}), "first is 3 with 3 tokens from there, expected tokens from 0 to 5");
  EXPECT_NAMED(cache.rotate_queries(key, key), "without rotary embedding");
}

// Every number that says how much is there, at and beyond its bounds; refused ones change nothing.
TEST(KvCache, LengthsAndSequencesAtTheirBounds) {
  Random random(19);
  constexpr std::int64_t least32 = std::numeric_limits<std::int32_t>::min(), most32 = std::numeric_limits<std::int32_t>::max(),
                         least64 = std::numeric_limits<std::int64_t>::min(), most64 = std::numeric_limits<std::int64_t>::max();
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::ring, CacheKind::paged})
    for (const DType dtype : {DType::i32, DType::i64})
      for (const std::int64_t item : {0, 1, 2}) {
        const KvCacheSpec spec = cache_spec(kind, 3, 2, 4, 4, 12, kind == CacheKind::paged ? 4 : 0);
        KvCache cache(spec);
        CacheModel model(spec);
        const NewTokens before = new_tokens(spec, {0, 1, 2}, {6, 6, 6}, random);
        cache.append(before.append()), model.append(before);
        NewTokens fresh = new_tokens(spec, {0, 1, 2}, {4, 4, 4}, random);
        const std::int64_t given = fresh.key.view().shape[2];  // 4 to 6, all of which fit
        std::vector<std::int64_t> beyond = {-1, given + 1, least32, most32};
        if (dtype == DType::i64) beyond.insert(beyond.end(), {least64, most64, (std::int64_t{1} << 32) + 1});
        const auto with = [&](std::int64_t number) {
          std::vector<std::int64_t> all = {1, 1, 1};
          all[static_cast<std::size_t>(item)] = number;
          return list_of(dtype, all);
        };
        const std::string place = "[" + std::to_string(item) + "] is ";
        for (const std::int64_t number : beyond) {
          CacheAppend tokens = fresh.append();
          tokens.lengths = with(number);
          EXPECT_NAMED(cache.append(tokens), "lengths" + place + std::to_string(number));
          tokens = fresh.append();
          const std::int64_t wrong = number == given + 1 ? 3 : number;
          tokens.sequences = list_of(dtype, {item == 0 ? wrong : 0, item == 1 ? wrong : 1, item == 2 ? wrong : 2});
          EXPECT_NAMED(cache.append(tokens), "sequences" + place + std::to_string(wrong));
          ASSERT_TRUE(model.matches(cache)) << number;
        }
        for (const std::int64_t number : {std::int64_t{0}, std::int64_t{1}, given}) {
          fresh = new_tokens(spec, {0, 1, 2}, {item == 0 ? number : 1, item == 1 ? number : 1, item == 2 ? number : 1}, random);
          KvCache copy(spec);
          CacheModel copy_model(spec);
          copy.append(fresh.append()), copy_model.append(fresh);
          EXPECT_TRUE(copy_model.matches(copy)) << number;
        }
      }
}

// Elements may lie anywhere that an element may lie.
TEST(KvCache, AnyAlignmentOfWhatIsAppendedReadAndTurned) {
  Random random(20);
  KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, 16, 12, 0, 4);
  spec.rotary.style = Rotary::half_split;
  const Tensor key(DType::f32, {1, 2, 9, 16}), value(DType::f32, {1, 2, 9, 12}), query(DType::f32, {1, 4, 9, 16});
  fill_normal(key, random), fill_normal(value, random), fill_normal(query, random);
  const auto at = [](const Tensor::Sizes& shape, std::int64_t shift) {
    Tensor::Sizes strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
    return Tensor(DType::f32, shape, strides, shift);
  };
  Tensor stored_key, stored_value, turned;
  for (std::int64_t shift = 0; shift < 16; ++shift) {
    const Tensor own_key = at({1, 2, 9, 16}, shift), own_value = at({1, 2, 9, 12}, (3 * shift + 1) % 16),
                 own_query = at({1, 4, 9, 16}, (5 * shift + 2) % 16), out = at({1, 4, 9, 16}, (7 * shift + 3) % 16),
                 read_key = at({2, 9, 16}, (9 * shift + 4) % 16), read_value = at({2, 9, 12}, (11 * shift + 5) % 16);
    copy(key, own_key), copy(value, own_value), copy(query, own_query);
    KvCache cache(spec);
    CacheAppend tokens;
    tokens.key = own_key, tokens.value = own_value;
    cache.append(tokens);
    cache.read(0, 0, read_key, read_value);
    cache.rotate_queries(own_query, out);
    if (shift == 0) stored_key = read_key, stored_value = read_value, turned = out;
    EXPECT_TRUE(same_bits(stored_key, read_key)) << "shift " << shift;
    EXPECT_TRUE(same_bits(stored_value, read_value)) << "shift " << shift;
    EXPECT_TRUE(same_bits(turned, out)) << "shift " << shift;
    EXPECT_TRUE(read_key.surroundings_intact() && read_value.surroundings_intact() && out.surroundings_intact());
  }
  EXPECT_TRUE(same_bits(stored_value, value.viewed(select(value, 0))));
}

TEST(KvCache, ARingForgetsItsOldestTokensAndSaysSo) {
  Random random(17);
  const KvCacheSpec spec = cache_spec(CacheKind::ring, 2, 1, 4, 4, 10);
  KvCache cache(spec);
  CacheModel model(spec);
  for (const std::int64_t count : {4, 9, 35, 1}) {  // more than the ring has room for, too
    const NewTokens fresh = new_tokens(spec, {1}, {count}, random);
    cache.append(fresh.append());
    model.append(fresh);
    EXPECT_TRUE(model.matches(cache));
  }
  EXPECT_EQ(cache.length(1), 49);
  EXPECT_EQ(cache.first_token(1), 39);
  EXPECT_NAMED(cache.trim(1, 38), "length is 38, expected 0, or 39 to 49");
  EXPECT_NAMED(cache.fork(1, 0, 45), "since a ring is copied whole");
  const Tensor key(DType::f32, {1, 5, 4});
  EXPECT_NAMED(cache.read(1, 38, key, {}), "tokens from 39 to 49");
  cache.trim(1, 45), model.trim(1, 45);
  EXPECT_TRUE(model.matches(cache));
  const NewTokens fresh = new_tokens(spec, {1}, {2}, random);
  cache.append(fresh.append()), model.append(fresh);
  EXPECT_TRUE(model.matches(cache));
  EXPECT_EQ(cache.first_token(1), 39) << "what was overwritten before the trim does not come back";
}

TEST(KvCache, IsMovedWithAllItHolds) {
  Random random(18);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 2, 1, 4, 4, 0, 4);
  KvCache cache(spec);
  CacheModel model(spec);
  const NewTokens fresh = new_tokens(spec, {0, 1}, {5, 6}, random);
  cache.append(fresh.append()), model.append(fresh);
  KvCache other = std::move(cache);
  EXPECT_TRUE(model.matches(other));
  cache = std::move(other);
  EXPECT_TRUE(model.matches(cache));
}

}  // namespace
}  // namespace polyhead::testing
