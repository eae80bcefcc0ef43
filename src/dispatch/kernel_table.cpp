#include "dispatch/kernel_table.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "dispatch/cpu_features.hpp"
#include "dispatch/select_isa.hpp"
#include "polyhead/error.hpp"

// Declarations of the kernel objects. Their addresses are constants, so the tables need no code at start-up.
#define POLYHEAD_KERNEL(kind, target, source)                               \
  namespace polyhead::simd::source {                                        \
  extern std::remove_pointer_t<decltype(dispatch::KernelTable::kind)> kind; \
  }
#include "dispatch/kernels.inc"
#if defined(POLYHEAD_HAVE_I8) && defined(POLYHEAD_HAVE_AVX512)
namespace polyhead::simd::N_AVX3 {
extern const AttentionKernel vnni_decode_i8;
extern const GemmKernel vnni_gemm_i8_i8;
}  // namespace polyhead::simd::N_AVX3
#endif

namespace polyhead::dispatch {
namespace {

constexpr std::size_t isa_count = static_cast<std::size_t>(Isa::neon_bf16) + 1;  // the last one

struct Tables {
  std::array<KernelTable, isa_count> table{};
  std::array<bool, isa_count> built{};
};

// Kernels of a plainer target run wherever those of a fuller one do.
constexpr bool serves(Isa kernels, Isa isa) {
  while (isa != kernels && isa != Isa::reference) isa = next_plainer(isa);
  return isa == kernels;
}

// A kernel that meets strict's bound meets fast's.
constexpr void serve(KernelTable& table, const simd::AttentionKernel* KernelTable::* kind,
                     const simd::AttentionKernel* kernel) {
  table.*kind = kernel;
  if (kind == &KernelTable::attention_f32) table.fast_attention_f32 = kernel;
}
template <class Kernel>
constexpr void serve(KernelTable& table, const Kernel* KernelTable::* kind, const Kernel* kernel) {
  table.*kind = kernel;
}

// Rows come plainest target first (kernels.inc), so a fuller target's own kernel takes the place of what it fell back to. No
// pointer is compared with null: with sanitizers an object's address is no constant for that.
constexpr Tables make_tables() {
  Tables tables;
  for (std::size_t isa = 0; isa < isa_count; ++isa) tables.table[isa].isa = static_cast<Isa>(isa);
#define POLYHEAD_KERNEL(kind, target, source)                          \
  for (std::size_t isa = 0; isa < isa_count; ++isa) {                  \
    if (!serves(Isa::target, static_cast<Isa>(isa))) continue;         \
    serve(tables.table[isa], &KernelTable::kind, &simd::source::kind); \
  }                                                                    \
  tables.built[static_cast<std::size_t>(Isa::target)] = true;
#include "dispatch/kernels.inc"
  return tables;
}

constexpr Tables tables = make_tables();

#if defined(POLYHEAD_HAVE_I8)
#if defined(POLYHEAD_HAVE_AVX512)
// Products of integers are no target of their own: they give the same bits, so that what a CPU has beside AVX-512 is nothing
// that anybody would ask for.
bool multiplies_integers(const KernelTable& table) {
  static const bool has_vnni = cpu_features().supports(Isa::avx512) && cpu_features().avx512_vnni;
  return has_vnni && serves(Isa::avx512, table.isa);
}
const simd::AttentionKernel* decode_i8(const KernelTable& table) {
  return multiplies_integers(table) ? &simd::N_AVX3::vnni_decode_i8 : table.decode_i8;
}
const simd::GemmKernel* gemm_i8_i8(const KernelTable& table) {
  return multiplies_integers(table) ? &simd::N_AVX3::vnni_gemm_i8_i8 : table.gemm_i8_i8;
}
#else
const simd::AttentionKernel* decode_i8(const KernelTable& table) {
  return table.decode_i8;
}
const simd::GemmKernel* gemm_i8_i8(const KernelTable& table) {
  return table.gemm_i8_i8;
}
#endif
#endif

constexpr int reference_rows() {
  int rows = 0;
#define POLYHEAD_KERNEL(kind, target, source) rows += Isa::target == Isa::reference;
#include "dispatch/kernels.inc"
  return rows;
}
// All but fast_attention_f32, which attention_f32's row serves too.
static_assert(reference_rows() == (sizeof(KernelTable) - offsetof(KernelTable, attention_f32)) / sizeof(void*) - 1,
              "the reference rows of kernels.inc must be complete");

}  // namespace

const KernelTable& kernel_table(Isa isa) {
  const std::size_t index = static_cast<std::size_t>(isa);
  if (index >= isa_count || !tables.built[index]) {
    throw Error(ErrorCode::unsupported, "instruction set " + std::string(index < isa_count ? isa_name(isa) : "(unknown)") +
                                            ": this build contains kernels for " + names_of(built_isas()) + " only");
  }
  return tables.table[index];
}

std::vector<Isa> built_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : all_isas()) {
    if (tables.built[static_cast<std::size_t>(isa)]) isas.push_back(isa);
  }
  return isas;
}

const std::vector<DType>& attention_dtypes() {
  static const std::vector<DType> dtypes = {
      DType::f32,
#if defined(POLYHEAD_HAVE_BF16)
      DType::bf16,
#endif
#if defined(POLYHEAD_HAVE_F16)
      DType::f16,
#endif
  };
  return dtypes;
}

const KernelTable& mixing_table(const KernelTable& table, DType of_keys) {
  const bool takes_own_alone = (of_keys == DType::bf16 && (multiplies_bf16_pairs(table.isa) || table.isa == Isa::amx)) ||
                               (of_keys == DType::f16 && table.isa == Isa::amx);
  if (!takes_own_alone) return table;
  Isa isa = next_plainer(table.isa);
  while (!tables.built[static_cast<std::size_t>(isa)]) isa = next_plainer(isa);  // the reference is always there
  return tables.table[static_cast<std::size_t>(isa)];
}

const std::vector<DType>& cache_dtypes() {
  static const std::vector<DType> dtypes = [] {
    std::vector<DType> all = attention_dtypes();
#if defined(POLYHEAD_HAVE_I8)
    all.push_back(DType::i8);
#endif
    return all;
  }();
  return dtypes;
}

simd::Element element_of(DType dtype) {
  return dtype == DType::bf16 ? simd::Element::bf16 : dtype == DType::f16 ? simd::Element::f16 : simd::Element::f32;
}

AttentionKernels attention_kernels(const KernelTable& table, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {table.attention_f32, table.fast_attention_f32, table.decode_f32, table.merge_f32};
#if defined(POLYHEAD_HAVE_BF16)
    case DType::bf16:
      return {table.attention_bf16, table.attention_bf16, table.decode_bf16, table.merge_bf16};
#endif
#if defined(POLYHEAD_HAVE_F16)
    case DType::f16:
      return {table.attention_f16, table.attention_f16, table.decode_f16, table.merge_f16};
#endif
#if defined(POLYHEAD_HAVE_I8)
    case DType::i8:
      return {table.attention_i8, table.attention_i8, decode_i8(table), table.merge_f32};
#endif
    default:
      break;
  }
  std::string built;
  for (const DType served : attention_dtypes()) built += (built.empty() ? "" : ", ") + std::string(name(served));
  throw Error(ErrorCode::unsupported,
              "attention on " + std::string(name(dtype)) + ": this build contains kernels for " + built + " only");
}

const std::vector<WeightType>& weight_types() {
  static const std::vector<WeightType> types = {
      WeightType::f32,
#if defined(POLYHEAD_HAVE_BF16)
      WeightType::bf16, WeightType::bf16_dynamic,
#endif
#if defined(POLYHEAD_HAVE_F16)
      WeightType::f16,
#endif
#if defined(POLYHEAD_HAVE_I8)
      WeightType::int8, WeightType::int8_dynamic,
#endif
#if defined(POLYHEAD_HAVE_I4)
      WeightType::int4,
#endif
  };
  return types;
}

const simd::GemmKernel& gemm_kernel(const KernelTable& table, WeightType weights) {
  switch (weights) {
    case WeightType::f32:
      return *table.gemm_f32;
#if defined(POLYHEAD_HAVE_BF16)
    case WeightType::bf16:
      return *table.gemm_f32_bf16;
    case WeightType::bf16_dynamic:
      return *table.gemm_bf16_bf16;
#endif
#if defined(POLYHEAD_HAVE_F16)
    case WeightType::f16:
      return *table.gemm_f32_f16;
#endif
#if defined(POLYHEAD_HAVE_I8)
    case WeightType::int8:
      return *table.gemm_f32_i8;
    case WeightType::int8_dynamic:
      return *gemm_i8_i8(table);
#endif
#if defined(POLYHEAD_HAVE_I4)
    case WeightType::int4:
      return *table.gemm_f32_i4;
#endif
    default:
      break;
  }
  std::string built;
  for (const WeightType served : weight_types()) built += (built.empty() ? "" : ", ") + std::string(name(served));
  throw Error(ErrorCode::unsupported,
              "weights of " + std::string(name(weights)) + ": this build contains kernels for " + built + " only");
}

std::vector<KernelRow> kernel_rows() {
  return {
#define POLYHEAD_KERNEL(kind, target, source) KernelRow{#kind, Isa::target, simd::source::kind.name},
#include "dispatch/kernels.inc"
  };
}

}  // namespace polyhead::dispatch
