#include "dispatch/kernel_table.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "dispatch/select_isa.hpp"
#include "polyhead/error.hpp"

// Declarations of the kernel objects. Their addresses are constants, so the tables need no code at start-up.
#define POLYHEAD_KERNEL(kind, target, source)                               \
  namespace polyhead::simd::source {                                        \
  extern std::remove_pointer_t<decltype(dispatch::KernelTable::kind)> kind; \
  }
#include "dispatch/kernels.inc"

namespace polyhead::dispatch {
namespace {

constexpr std::size_t isa_count = 6;

struct Tables {
  std::array<KernelTable, isa_count> table{};
  std::array<bool, isa_count> built{};
};

// Kernels of a plainer target run wherever those of a fuller one do.
template <typename Kernel>
constexpr void fall_back(const Kernel*& kernel, const Kernel* plainer) {
  if (kernel == nullptr) kernel = plainer;
}

constexpr Tables make_tables() {
  Tables tables;
  for (std::size_t isa = 0; isa < isa_count; ++isa) tables.table[isa].isa = static_cast<Isa>(isa);
#define POLYHEAD_KERNEL(kind, target, source)                                     \
  tables.table[static_cast<std::size_t>(Isa::target)].kind = &simd::source::kind; \
  tables.built[static_cast<std::size_t>(Isa::target)] = true;
#include "dispatch/kernels.inc"
  for (std::size_t isa = 1; isa < isa_count; ++isa) {
    KernelTable& table = tables.table[isa];
    const KernelTable& plainer = tables.table[static_cast<std::size_t>(next_plainer(static_cast<Isa>(isa)))];
    fall_back(table.attention_f32, plainer.attention_f32);
    fall_back(table.decode_f32, plainer.decode_f32);
    fall_back(table.merge_f32, plainer.merge_f32);
    fall_back(table.gemm_f32, plainer.gemm_f32);
    fall_back(table.layer_norm_f32, plainer.layer_norm_f32);
    fall_back(table.softmax_f32, plainer.softmax_f32);
    fall_back(table.activation_f32, plainer.activation_f32);
  }
  return tables;
}

constexpr Tables tables = make_tables();

constexpr bool complete(const KernelTable& table) {
  return table.attention_f32 && table.decode_f32 && table.merge_f32 && table.gemm_f32 && table.layer_norm_f32 &&
         table.softmax_f32 && table.activation_f32;
}
static_assert(complete(tables.table[0]), "the reference rows of kernels.inc must be complete");

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
  for (std::size_t isa = 0; isa < isa_count; ++isa) {
    if (tables.built[isa]) isas.push_back(static_cast<Isa>(isa));
  }
  return isas;
}

std::vector<KernelRow> kernel_rows() {
  return {
#define POLYHEAD_KERNEL(kind, target, source) KernelRow{#kind, Isa::target, simd::source::kind.name},
#include "dispatch/kernels.inc"
  };
}

}  // namespace polyhead::dispatch
