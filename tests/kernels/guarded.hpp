// Memory of just the asked size between two pages that may not be touched: an access beyond the end faults at once, one before
// the beginning lands in a pattern that is checked.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

namespace polyhead::test {

template <class T>
class Guarded {
 public:
  // `alignment` in bytes moves the beginning down to a multiple of it; what this leaves at the end is patterned too.
  explicit Guarded(std::size_t count, std::size_t alignment = alignof(T)) : count_(count) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = count * sizeof(T);
    const std::size_t room = (bytes + alignment + page - 1) / page * page;
    mapped_bytes_ = room + 2 * page;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mapped_ = static_cast<unsigned char*>(mapped);
    mprotect(mapped_, page, PROT_NONE);
    end_ = mapped_ + page + room;
    // An emulator may read what a masked load leaves out; POLYHEAD_TEST_READABLE_GUARDS lets it. Nothing may be written in any
    // case.
    mprotect(end_, page, std::getenv("POLYHEAD_TEST_READABLE_GUARDS") ? PROT_READ : PROT_NONE);
    inside_ = mapped_ + page;
    std::memset(inside_, pattern, room);
    data_ = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(end_ - bytes) / alignment * alignment);
  }
  ~Guarded() {
    EXPECT_TRUE(intact()) << "bytes beside an operand were written";
    munmap(mapped_, mapped_bytes_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

  bool intact() const {
    const unsigned char* first = reinterpret_cast<const unsigned char*>(data_);
    for (const unsigned char* byte = inside_; byte < first; ++byte) {
      if (*byte != pattern) return false;
    }
    for (const unsigned char* byte = first + count_ * sizeof(T); byte < end_; ++byte) {
      if (*byte != pattern) return false;
    }
    return true;
  }

  void fill_random(std::uint32_t seed, double low = -1.0, double high = 1.0) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> distribution(low, high);
    for (std::size_t i = 0; i < count_; ++i) data_[i] = static_cast<T>(distribution(generator));
  }

 private:
  static constexpr unsigned char pattern = 0xFF;  // as floats: NaN
  std::size_t count_;
  unsigned char* mapped_ = nullptr;
  unsigned char* inside_ = nullptr;
  unsigned char* end_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  T* data_ = nullptr;
};

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace polyhead::test
