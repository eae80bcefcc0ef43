// What the CPU can do *and* the operating system allows. Detection is a pure function of what the CPU and the kernel say, so
// that it is tested with forged answers for machines we don't have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/runtime.hpp"

namespace polyhead::dispatch {

struct CpuidRegisters {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// One answer of the CPUID instruction.
struct CpuidLeaf {
  std::uint32_t leaf = 0, subleaf = 0;
  CpuidRegisters registers;
};

// All that x86 detection looks at.
struct CpuidTable {
  std::vector<CpuidLeaf> leaves;
  std::uint64_t xcr0 = 0;  // which register states the operating system saves; 0 where it doesn't use XSAVE

  // Zeros for a leaf that isn't there, or that lies beyond what leaf 0 (or 0x80000000) promises: such a leaf answers with
  // another leaf's data on old CPUs.
  CpuidRegisters at(std::uint32_t leaf, std::uint32_t subleaf = 0) const;
};

struct CacheInfo {
  int level = 0;
  char kind = 'u';  // 'd' data, 'i' instructions, 'u' unified
  std::int64_t bytes = 0;
  std::int64_t line_bytes = 0;
  int shared_by = 1;  // logical CPUs that share it
};

// All that ARM detection looks at.
struct ArmHwcaps {
  std::uint64_t hwcap = 0;        // getauxval(AT_HWCAP)
  std::uint64_t hwcap2 = 0;       // getauxval(AT_HWCAP2)
  std::uint32_t implementer = 0;  // of the CPU's identification register, 0 where unknown
  std::uint32_t part = 0;
  std::vector<CacheInfo> caches;  // ARM has no instruction that tells
};

struct CpuFeatures {
  std::string vendor, brand;
  int family = 0, model = 0, stepping = 0;
  std::vector<CacheInfo> caches;

  // Each is true only when the CPU has it and the operating system saves the registers it uses.
  bool ssse3 = false, sse41 = false, sse42 = false, pclmul = false, aes = false;
  bool avx = false, avx2 = false, fma = false, f16c = false, bmi1 = false, bmi2 = false, lzcnt = false, avx_vnni = false;
  bool avx512f = false, avx512cd = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512_vnni = false, avx512_bf16 = false, avx512_fp16 = false;
  // The process still has to ask the kernel for the permission to use AMX tiles.
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
  bool neon = false, arm_aes = false, arm_bf16 = false, arm_dot_product = false, sve = false;

  // Whether kernels compiled for this target run here (amx: once the permission is given).
  bool supports(Isa isa) const;
  // Whether this CPU is known to do more with products of bf16 pairs (avx512_bf16, neon_bf16) than with multiply-adds of f32.
  // Of ARM's none is known yet.
  bool fast_bf16_products() const;
  std::int64_t fetch_ahead_bytes() const;
  // Names of the features above that are true, as in "avx2 fma f16c".
  std::string feature_list() const;
  // Of the data (or unified) cache of this level, 0 where unknown.
  std::int64_t cache_bytes(int level) const;
};

CpuFeatures features_from_cpuid(const CpuidTable& table);
CpuFeatures features_from_hwcaps(const ArmHwcaps& hwcaps);

// The one place where the real instructions are executed (an empty table on other architectures).
CpuidTable read_cpuid();
ArmHwcaps read_hwcaps();

// Asks the operating system, once a process, to let it use AMX tiles; false where it does not. Linux then reserves 8 KB a
// thread that uses them and wants larger alternate signal stacks from then on, so only who is to use tiles asks.
bool request_tile_permission();

// This machine; detected once, at the first call, in a thread-safe way.
const CpuFeatures& cpu_features();

}  // namespace polyhead::dispatch
