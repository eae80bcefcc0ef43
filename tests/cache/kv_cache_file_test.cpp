// Saved caches: everything comes back, and a file that is not what was saved is an error, whatever is wrong with it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "cache/cache_model.hpp"
#include "dispatch/kernel_table.hpp"
#include "polyhead/error.hpp"

namespace polyhead::testing {
namespace {

using Bytes = std::vector<unsigned char>;

// Reads and copies all of it, for what a sanitizer may have to say.
void look_at_all(KvCache cache) {
  const KvCacheSpec spec = cache.spec();
  for (std::int64_t i = 0; i < spec.sequences; ++i) {
    const std::int64_t first = cache.first_token(i), count = cache.length(i) - first;
    const Tensor key(DType::f32, {spec.kv_heads, count, spec.head_dim}),
        value(DType::f32, {spec.kv_heads, count, spec.value_dim});
    cache.read(i, first, key, value);
    cache.fork(i, spec.sequences - 1 - i);
  }
}

class KvCacheFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("polyhead_cache_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name = "cache") const { return (folder_ / name).string(); }

  Bytes bytes_of(const std::string& file) const {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }
  std::string write(const Bytes& bytes) const {
    const std::string file = path("changed");
    std::filesystem::remove(file);  // truncating a file that is there waits for the disk
    std::ofstream stream(file, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return file;
  }
  // The message of the error that loading these bytes has to give; `loaded` where it gives none.
  std::string refusal(const Bytes& bytes) const {
    try {
      look_at_all(KvCache::load(write(bytes)));
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::io_error || error.code() == ErrorCode::unsupported ||
                  error.code() == ErrorCode::out_of_memory)
          << error.what();
      return error.what();
    }
    return "loaded";
  }

 private:
  std::filesystem::path folder_;
};

std::vector<KvCacheSpec> layouts() {
  std::vector<KvCacheSpec> all = {cache_spec(CacheKind::contiguous, 3, 2, 4, 6, 40), cache_spec(CacheKind::ring, 3, 2, 4, 6, 9),
                                  cache_spec(CacheKind::paged, 4, 2, 4, 6, 0, 4)};
  all[0].rotary = {Rotary::interleaved, 2, 5000.0, {}};
  all[1].window = 6;
  all[2].rotary = {Rotary::half_split, 4, 10000.0, {0.5, 0.25}};
  all[2].max_pages = 50;
  for (const DType dtype : dispatch::cache_dtypes()) {
    if (dtype == DType::f32) continue;
    all.push_back(all[dtype == DType::bf16 ? 1 : 2]);
    all.back().dtype = dtype;
  }
  return all;
}

// Some tokens in some sequences, shared ones among them.
KvCache some_cache(const KvCacheSpec& spec, Random& random) {
  KvCache cache(spec);
  cache.append(new_tokens(spec, {0, 1}, {21, 6}, random).append());
  cache.fork(0, 2);
  cache.append(new_tokens(spec, {2}, {3}, random).append());
  if (spec.kind == CacheKind::paged) cache.fork(2, 3, 18);
  return cache;
}

void expect_same(const KvCache& a, const KvCache& b) {
  const KvCacheSpec &x = a.spec(), &y = b.spec();
  EXPECT_EQ(describe(x), describe(y));
  EXPECT_EQ(x.window, y.window);
  EXPECT_EQ(x.dtype, y.dtype);
  EXPECT_EQ(x.rotary.style, y.rotary.style);
  EXPECT_EQ(x.rotary.dims, y.rotary.dims);
  EXPECT_EQ(x.rotary.base, y.rotary.base);
  EXPECT_EQ(x.rotary.frequencies, y.rotary.frequencies);
  EXPECT_EQ(a.pages_in_use(), b.pages_in_use());
  for (std::int64_t i = 0; i < x.sequences; ++i) {
    ASSERT_EQ(a.length(i), b.length(i));
    ASSERT_EQ(a.first_token(i), b.first_token(i));
    const std::int64_t first = a.first_token(i), count = a.length(i) - first;
    const Tensor key_a(DType::f32, {x.kv_heads, count, x.head_dim}), key_b = key_a.clone();
    const Tensor value_a(DType::f32, {x.kv_heads, count, x.value_dim}), value_b = value_a.clone();
    a.read(i, first, key_a, value_a);
    b.read(i, first, key_b, value_b);
    EXPECT_TRUE(same_bits(key_a, key_b)) << "sequence " << i;
    EXPECT_TRUE(same_bits(value_a, value_b)) << "sequence " << i;
  }
}

TEST_F(KvCacheFile, EverythingComesBackAndGoesOn) {
  Random random(51);
  for (const KvCacheSpec& spec : layouts()) {
    KvCache cache = some_cache(spec, random);
    cache.save(path());
    EXPECT_FALSE(std::filesystem::exists(path("cache.partial")));
    KvCache loaded = KvCache::load(path());
    expect_same(cache, loaded);
    const NewTokens fresh = new_tokens(spec, {2, 0}, {7, 2}, random);
    cache.append(fresh.append());
    loaded.append(fresh.append());
    expect_same(cache, loaded);
    loaded.save(path());  // over the old file
    expect_same(cache, KvCache::load(path()));
  }
  // Empty caches, too.
  for (const KvCacheSpec& spec : layouts()) {
    const KvCache cache(spec);
    cache.save(path());
    expect_same(cache, KvCache::load(path()));
  }
}

TEST_F(KvCacheFile, NoByteMayChangeAndNoneMayBeMissing) {
  Random random(52);
  for (const KvCacheSpec& spec : layouts()) {
    some_cache(spec, random).save(path());
    const Bytes right = bytes_of(path());
    EXPECT_EQ(refusal(right), "loaded");
    for (std::size_t i = 0; i < right.size(); ++i) {
      Bytes wrong = right;
      wrong[i] ^= static_cast<unsigned char>(1 << random.integer(0, 7));
      ASSERT_NE(refusal(wrong), "loaded") << "byte " << i << " of " << right.size();
    }
    for (std::size_t size = 0; size < right.size(); size += 1 + size / 16) {
      const std::string message = refusal(Bytes(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(size)));
      ASSERT_NE(message, "loaded") << size << " bytes";
      ASSERT_NE(message.find("changed"), std::string::npos) << "the message names no file: " << message;
    }
    Bytes longer = right;
    longer.push_back(0);
    EXPECT_NE(refusal(longer), "loaded");
  }
}

// A file made on purpose: every number changed, and its checksums right.
class Forged {
 public:
  explicit Forged(Bytes bytes) : bytes_(std::move(bytes)) {}

  std::int64_t get(std::size_t word) const {
    std::int64_t value;
    std::memcpy(&value, bytes_.data() + 8 * word, 8);
    return value;
  }
  void set(std::size_t word, std::int64_t value) { std::memcpy(bytes_.data() + 8 * word, &value, 8); }
  static constexpr std::size_t header_words = 21;
  std::size_t index_words() const {
    return static_cast<std::size_t>(get(16)) + 3 * static_cast<std::size_t>(get(5)) +
           static_cast<std::size_t>(get(17) + get(18)) + channel_words();
  }
  // Means and channels of integers, two to a word, at the index's end.
  std::size_t channel_words() const {
    const bool integers = get(4) == static_cast<std::int64_t>(DType::i8);
    return integers ? static_cast<std::size_t>(get(5) * get(6) * (get(7) + get(8))) : 0;
  }
  // With checksums over `index_words` words, as many as the file had before its header was changed.
  Bytes sealed(std::size_t index) {
    set(header_words - 1, sum(0, header_words - 1));
    set(header_words + index, sum(header_words, index));
    return bytes_;
  }

 private:
  std::int64_t sum(std::size_t first, std::size_t words) const {
    std::uint64_t sum = 0x243f6a8885a308d3u;
    for (std::size_t i = 0; i < words; ++i) {
      sum = (sum ^ static_cast<std::uint64_t>(get(first + i))) * 0x9e3779b97f4a7c15u;
      sum ^= sum >> 32;
    }
    return static_cast<std::int64_t>(sum);
  }
  Bytes bytes_;
};

TEST_F(KvCacheFile, AForgedFileIsRefused) {
  Random random(53);
  const std::int64_t absurd[] = {
      -1, 0, 1, 2, 3, 5, 7, 255, 1 << 20, std::int64_t{1} << 40, std::int64_t{1} << 62, -(std::int64_t{1} << 62)};
  for (const KvCacheSpec& spec : layouts()) {
    some_cache(spec, random).save(path());
    const Bytes right = bytes_of(path());
    const std::size_t index = Forged(right).index_words();
    EXPECT_EQ(refusal(Forged(right).sealed(index)), "loaded") << "the test's own checksums are wrong";
    // Header words from the version on, and all of the index: nothing may crash or hang, and what describes sizes is refused.
    for (std::size_t word = 2; word < Forged::header_words + index; ++word) {
      if (word == Forged::header_words - 1) continue;
      for (const std::int64_t value : absurd) {
        Forged forged(right);
        if (forged.get(word) == value) continue;
        // A capacity that the machine could have is no fault of the file, and asking for it is no test for a small machine.
        if (word == 9 && value > 1000 && spec.kind != CacheKind::paged) continue;
        forged.set(word, value);
        const std::string message = refusal(forged.sealed(index));
        const bool sizes = (word >= 5 && word <= 8) || (word >= 17 && word <= 19) || word == 3;
        if (sizes) {
          EXPECT_NE(message, "loaded") << describe(spec) << ": header word " << word << " is " << value;
        }
        // Lengths, first tokens, page counts, used tokens. A ring may have lost more than it had to, and a sequence may share a
        // page of another one: caches can come to that.
        const std::size_t sequences_at = Forged::header_words + static_cast<std::size_t>(Forged(right).get(16));
        const std::size_t tables_at = sequences_at + 3 * static_cast<std::size_t>(spec.sequences);
        const std::size_t used_at = tables_at + static_cast<std::size_t>(Forged(right).get(17));
        const std::size_t channels_at = Forged::header_words + index - Forged(right).channel_words();
        const bool first_of_ring = spec.kind == CacheKind::ring && word < tables_at && (word - sequences_at) % 3 == 1;
        if (word >= sequences_at && (word < tables_at || word >= used_at) && word < channels_at && !first_of_ring) {
          EXPECT_NE(message, "loaded") << describe(spec) << ": index word " << word - Forged::header_words << " is " << value;
        }
        if (word >= tables_at && word < used_at && (value < 0 || value >= Forged(right).get(18))) {
          EXPECT_NE(message, "loaded") << describe(spec) << ": page number " << value;
        }
      }
    }
  }
}

TEST_F(KvCacheFile, ChannelsThatCannotBeAreRefused) {
  if (dispatch::cache_dtypes().back() != DType::i8) GTEST_SKIP() << "a build without i8";
  Random random(55);
  some_cache(layouts().back(), random).save(path());
  const Bytes right = bytes_of(path());
  const std::size_t index = Forged(right).index_words(), first = Forged::header_words + index - Forged(right).channel_words();
  const auto pair = [](float a, float b) {
    const float both[] = {a, b};
    std::int64_t word;
    std::memcpy(&word, both, sizeof word);
    return word;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  // Of the first head of the first sequence: four means of keys, then four channels, six means of values, six channels.
  const auto refused = [&](std::size_t word, float a, float b) {
    Forged forged(right);
    forged.set(first + word, pair(a, b));
    return refusal(forged.sealed(index)).find("has a channel of") != std::string::npos;
  };
  EXPECT_TRUE(refused(0, infinity, 0));
  EXPECT_TRUE(refused(2, 1, -1));
  EXPECT_TRUE(refused(3, 0, 1));
  EXPECT_TRUE(refused(9, 1, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_FALSE(refused(0, -3, 5));
  EXPECT_FALSE(refused(2, 1, 2));
}

TEST_F(KvCacheFile, PlacesThatCannotBeWrittenOrRead) {
  Random random(54);
  const KvCache cache = some_cache(layouts()[0], random);
  try {
    cache.save(path("no/such/folder"));
    ADD_FAILURE() << "saved into a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_error);
    EXPECT_NE(std::string(error.what()).find("no/such/folder"), std::string::npos);
  }
  for (const char* name : {"absent", "."}) {
    try {
      KvCache::load(path(name));
      ADD_FAILURE() << "loaded " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io_error) << error.what();
    }
  }
}

}  // namespace
}  // namespace polyhead::testing
