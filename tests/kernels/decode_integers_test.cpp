// decode_i8: what serves in the place of an instruction set's own kernel, where the CPU has more, gives its bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/guarded.hpp"
#include "polyhead/runtime.hpp"
#include "support/random.hpp"

namespace polyhead::test {
namespace {

#if defined(POLYHEAD_HAVE_I8)

std::size_t count_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

// Keys and values of integers with everything that belongs to them, in guarded memory, in one piece or in pages that lie in
// descending order.
struct IntegerProblem {
  IntegerProblem(std::int64_t rows, std::int64_t keys, std::int64_t head_dim, std::int64_t value_dim, std::int64_t page_keys)
      : in_page(page_keys == 0 ? keys : page_keys),
        page_count((keys + in_page - 1) / in_page),
        query(count_of(rows * head_dim)),
        key(count_of(page_count * in_page * head_dim)),
        value(count_of(page_count * in_page * value_dim)),
        key_scale(count_of(page_count * in_page)),
        value_scale(count_of(page_count * in_page)),
        of_columns(count_of(2 * (head_dim + value_dim))) {
    polyhead::testing::Random random(static_cast<std::uint32_t>(rows + keys + head_dim));
    const auto fill = [&](Guarded<float>& floats, double mean, double size) {
      for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(mean + size * random.normal());
    };
    const auto fill_integers = [&](Guarded<std::int8_t>& integers) {
      for (std::size_t i = 0; i < integers.size(); ++i) {
        integers[i] = static_cast<std::int8_t>(std::fmax(-127.0, std::fmin(127.0, std::nearbyint(50.0 * random.normal()))));
      }
    };
    fill(query, 0, 1), fill(key_scale, 0.02, 0.002), fill(value_scale, 0.02, 0.002), fill(of_columns, 1, 0.2);
    fill_integers(key), fill_integers(value);
    args.query = query.data(), args.query_stride = args.query_head_stride = head_dim * std::ptrdiff_t{sizeof(float)};
    args.query_element = args.out_element = simd::Element::f32;
    args.key_stride = head_dim, args.value_stride = value_dim;
    args.key_mean = of_columns.data(), args.key_channel = args.key_mean + head_dim;
    args.value_mean = args.key_channel + head_dim, args.value_channel = args.value_mean + value_dim;
    if (page_keys == 0) {
      args.key = key.data(), args.value = value.data();
      args.key_scale = key_scale.data(), args.value_scale = value_scale.data();
    } else {
      lay_out_pages(head_dim, value_dim);
    }
    args.row_end = rows, args.key_end = keys, args.head_dim = head_dim, args.value_dim = value_dim;
    args.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    args.out_stride = args.out_head_stride = value_dim * std::ptrdiff_t{sizeof(float)};
  }

  // [keys][values][key scales][value scales], as caches have them.
  void lay_out_pages(std::int64_t head_dim, std::int64_t value_dim) {
    const std::int64_t of_keys = in_page * head_dim, of_values = in_page * value_dim;
    const std::int64_t scales = (of_keys + of_values + 3) / 4 * 4;
    page_memory.resize(count_of(page_count));
    pages.resize(count_of(page_count));
    for (std::int64_t page = 0; page < page_count; ++page) {
      std::vector<float>& memory = page_memory[count_of(page_count - 1 - page)];
      memory.resize(count_of(scales / 4 + 2 * in_page));
      auto* const bytes = reinterpret_cast<std::int8_t*>(memory.data());
      for (std::int64_t i = 0; i < of_keys; ++i) bytes[i] = key[count_of(page * of_keys + i)];
      for (std::int64_t i = 0; i < of_values; ++i) bytes[of_keys + i] = value[count_of(page * of_values + i)];
      for (std::int64_t i = 0; i < in_page; ++i) {
        memory[count_of(scales / 4 + i)] = key_scale[count_of(page * in_page + i)];
        memory[count_of(scales / 4 + in_page + i)] = value_scale[count_of(page * in_page + i)];
      }
      pages[count_of(page)] = memory.data();
    }
    args.pages = pages.data(), args.page_keys = in_page, args.value_in_page = of_keys;
    args.key_scale_in_page = scales, args.value_scale_in_page = scales + in_page * std::ptrdiff_t{sizeof(float)};
  }

  std::vector<float> run(const simd::AttentionKernel& kernel) {
    Guarded<float> out(count_of(args.row_end * args.value_dim));
    Guarded<unsigned char> scratch(kernel.scratch_bytes(args.head_dim, args.value_dim, args.key_end), 64);
    args.out = out.data(), args.scratch = scratch.data();
    kernel.run(args);
    return {out.data(), out.data() + out.size()};
  }

  std::int64_t in_page, page_count;
  Guarded<float> query;
  Guarded<std::int8_t> key, value;
  Guarded<float> key_scale, value_scale, of_columns;
  std::vector<std::vector<float>> page_memory;
  std::vector<const void*> pages;
  simd::AttentionArgs args;
};

TEST(DecodeIntegers, TheKernelThatServesHasTheBitsOfTheTables) {
  const simd::AttentionKernel* compared = nullptr;  // of which several instruction sets may make use
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    const simd::AttentionKernel* const serving = dispatch::attention_kernels(table, DType::i8).decode;
    if (serving == table.decode_i8 || serving == compared) continue;
    compared = serving;
    for (const std::int64_t rows : {1, 3, 4, 9}) {
      for (const std::int64_t head_dim : {49, 72, 128, 520}) {
        for (const std::int64_t keys : {1, 130, 256, 1030}) {
          for (const std::int64_t page_keys : {0, 96}) {
            IntegerProblem problem(rows, keys, head_dim, head_dim == 128 ? 128 : head_dim + 3, page_keys);
            const std::vector<float> expected = problem.run(*table.decode_i8), out = problem.run(*serving);
            for (std::size_t i = 0; i < out.size(); ++i) {
              ASSERT_TRUE(std::isfinite(out[i]));
              ASSERT_EQ(bits_of(out[i]), bits_of(expected[i]))
                  << serving->name << ", " << rows << " rows, " << keys << " keys of " << head_dim << " in pages of "
                  << page_keys << ", element " << i << ": " << out[i] << " instead of " << expected[i];
            }
          }
        }
      }
    }
  }
  if (compared == nullptr) GTEST_SKIP() << "no kernel takes another one's place here";
}

#endif

}  // namespace
}  // namespace polyhead::test
