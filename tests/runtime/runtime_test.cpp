// The public Runtime, and the cache that one-shot calls use.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "api/call_cache.hpp"
#include "api/runtime_state.hpp"
#include "dispatch/cpu_features.hpp"
#include "dispatch/select_isa.hpp"
#include "polyhead/error.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/version.hpp"
#include "support/malloc_count.hpp"

namespace polyhead {
namespace {

Error error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::ok, "nothing was thrown");
}

void no_work(void*, std::size_t, void (*)(void*, std::size_t), void*) {}

TEST(Runtime, WrongOptionsAreNamed) {
  const auto expect = [](const RuntimeOptions& options, const std::string& field, const std::string& was) {
    const Error error = error_of([&] { Runtime runtime(options); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << field;
    EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(was), std::string::npos) << error.what();
  };
  RuntimeOptions options;
  options.threads = -3;
  expect(options, "threads", "-3");
  options = {};
  options.cpu_set = {0, -7};
  expect(options, "cpu_set", "-7");
  options = {};
  options.cpu_set = {0};
  options.use_calling_arena = true;
  expect(options, "cpu_set", "use_calling_arena");
  options = {};
  options.executor = Executor{};
  expect(options, "executor", "null");
  options.executor = Executor{nullptr, no_work, 0};
  expect(options, "executor", "concurrency is 0");
  options.executor = Executor{nullptr, no_work, 2};
  options.use_calling_arena = true;
  expect(options, "executor", "use_calling_arena");
  options.use_calling_arena = false;
  options.cpu_set = {0};
  expect(options, "executor", "cpu_set");
}

TEST(Runtime, EveryAvailableIsaCanBeForced) {
  const std::vector<Isa> available = available_isas();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(available.front(), Isa::reference);
  for (Isa isa : available) {
    RuntimeOptions options;
    options.isa = isa;
    const Runtime runtime(options);
    EXPECT_EQ(runtime.isa(), isa);
    EXPECT_EQ(runtime.state()->kernels().isa, isa);
    EXPECT_NE(runtime.describe().find(std::string(name(isa)) + " (forced)"), std::string::npos) << runtime.describe();
  }
  for (Isa isa : {Isa::sse4, Isa::avx512, Isa::avx512_bf16, Isa::neon, Isa::neon_bf16, Isa::sve, Isa::amx}) {
    bool present = false;
    for (Isa other : available) present = present || other == isa;
    if (present) continue;
    RuntimeOptions options;
    options.isa = isa;
    EXPECT_EQ(error_of([&] { Runtime runtime(options); }).code(), ErrorCode::unsupported) << name(isa);
  }
}

class IsaVariable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("POLYHEAD_ISA")) before_ = value;
  }
  void TearDown() override { setenv("POLYHEAD_ISA", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_F(IsaVariable, IsObeyed) {
  for (Isa isa : available_isas()) {
    setenv("POLYHEAD_ISA", name(isa), 1);
    EXPECT_EQ(default_isa(), isa);
    EXPECT_EQ(Runtime().isa(), isa);
  }
  unsetenv("POLYHEAD_ISA");
  std::vector<Isa> unasked;
  for (const Isa isa : available_isas()) {
    if (dispatch::chosen_unasked(isa, dispatch::cpu_features())) unasked.push_back(isa);
  }
  EXPECT_EQ(default_isa(), unasked.back());
  EXPECT_EQ(Runtime().describe().find("forced"), std::string::npos);
  setenv("POLYHEAD_ISA", "", 1);
  EXPECT_EQ(default_isa(), unasked.back());
}

TEST_F(IsaVariable, WrongNamesAreErrors) {
  setenv("POLYHEAD_ISA", "avx9", 1);
  const Error unknown = error_of([] { Runtime runtime; });
  EXPECT_EQ(unknown.code(), ErrorCode::invalid_argument);
  EXPECT_NE(std::string(unknown.what()).find("POLYHEAD_ISA"), std::string::npos) << unknown.what();
#if defined(__aarch64__)
  setenv("POLYHEAD_ISA", "avx2", 1);
#else
  setenv("POLYHEAD_ISA", "neon", 1);
#endif
  EXPECT_EQ(error_of([] { default_isa(); }).code(), ErrorCode::unsupported);
}

TEST(Runtime, Describe) {
  RuntimeOptions options;
  options.threads = 2;
  const std::string text = Runtime(options).describe();
  for (const char* part :
       {"polyhead " POLYHEAD_VERSION_STRING, "cpu:", "features:", "caches:", "isa:", "available: reference", "threads:"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  }
  options.executor = Executor{nullptr, no_work, 7};
  options.threads = 0;
  const Runtime hosted(options);
  EXPECT_EQ(hosted.threads(), 7);
  EXPECT_NE(hosted.describe().find("7 (the host's executor"), std::string::npos) << hosted.describe();
  options = {};
  options.threads = 1;
  EXPECT_NE(Runtime(options).describe().find("1 (the caller's only)"), std::string::npos);
}

TEST(Runtime, CopiesShareOneState) {
  const Runtime runtime;
  const Runtime copy = runtime;
  EXPECT_EQ(copy.state(), runtime.state());
}

// ---- CallCache

using detail::CallCache;
using detail::CallKey;

CallKey key_of(std::int64_t number) {
  return CallKey().add(std::uint64_t{1}).add(number).add(0.125);
}

TEST(CallCache, KeysDifferInEveryWord) {
  EXPECT_TRUE(key_of(5) == key_of(5));
  EXPECT_FALSE(key_of(5) == key_of(6));
  EXPECT_FALSE(CallKey().add(std::uint64_t{1}) == CallKey().add(std::uint64_t{1}).add(std::uint64_t{0}));
  EXPECT_FALSE(CallKey().add(0.0) == CallKey().add(-0.0));
  CallKey full;
  for (std::size_t i = 0; i < CallKey::max_words; ++i) full.add(std::uint64_t{i});
  EXPECT_THROW(full.add(std::uint64_t{0}), std::length_error);
}

TEST(CallCache, TheLeastRecentlyUsedLeaves) {
  CallCache cache;
  const int count = static_cast<int>(CallCache::capacity);
  const auto make = [](int value) { return [value] { return std::make_shared<const int>(value); }; };
  for (int i = 0; i < count; ++i) EXPECT_EQ(*cache.find_or_make<int>(key_of(i), make(i)), i);
  EXPECT_NE(cache.find(key_of(0)), nullptr);  // now the most recent one
  EXPECT_EQ(*cache.find_or_make<int>(key_of(count), make(count)), count);
  EXPECT_EQ(cache.find(key_of(1)), nullptr);
  for (int i : {0, 2, count - 1, count}) EXPECT_EQ(*cache.find_or_make<int>(key_of(i), make(-1)), i);
  cache.clear();
  EXPECT_EQ(cache.find(key_of(0)), nullptr);
}

TEST(CallCache, ValuesLiveWhileTheyAreUsed) {
  CallCache cache;
  const auto held = cache.find_or_make<int>(key_of(1), [] { return std::make_shared<const int>(1); });
  const std::weak_ptr<const int> other = cache.find_or_make<int>(key_of(2), [] { return std::make_shared<const int>(2); });
  cache.clear();
  EXPECT_EQ(*held, 1);
  EXPECT_TRUE(other.expired());
}

TEST(CallCache, AFailedMakeLeavesNothing) {
  CallCache cache;
  const auto fail = []() -> std::shared_ptr<const int> { throw std::runtime_error("no"); };
  EXPECT_THROW(cache.find_or_make<int>(key_of(1), fail), std::runtime_error);
  EXPECT_EQ(cache.find(key_of(1)), nullptr);
}

TEST(CallCache, AHitAllocatesNothing) {
  if (!testing::malloc_counting) GTEST_SKIP() << "allocations are not counted in this build";
  CallCache cache;
  for (int i = 0; i < 40; ++i) cache.find_or_make<int>(key_of(i), [i] { return std::make_shared<const int>(i); });
  const std::uint64_t before = testing::allocations.load();
  int sum = 0;
  for (int i = 0; i < 4000; ++i) sum += *cache.find_or_make<int>(key_of(i % 40), [] { return std::make_shared<const int>(0); });
  EXPECT_EQ(testing::allocations.load() - before, 0u);
  EXPECT_EQ(sum, 100 * 780);
}

TEST(CallCache, ManyThreads) {
  CallCache cache;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2000; ++i) {
        const int number = (i * 7 + thread) % 100;  // more than fit
        if (*cache.find_or_make<int>(key_of(number), [number] { return std::make_shared<const int>(number); }) != number)
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace polyhead
