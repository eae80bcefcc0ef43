#include "dispatch/cpu_features.hpp"

#include <utility>

namespace polyhead::dispatch {
namespace {

constexpr std::uint32_t extended_base = 0x80000000u;

constexpr bool bit(std::uint32_t value, int index) {
  return ((value >> index) & 1u) != 0;
}

// XCR0: SSE and AVX state (bits 1, 2); AVX-512 masks, upper halves and registers 16 to 31 (5, 6, 7); AMX configuration and
// tiles (17, 18).
constexpr std::uint64_t xcr0_avx = 0x6;
constexpr std::uint64_t xcr0_avx512 = xcr0_avx | 0xe0;
constexpr std::uint64_t xcr0_amx = 0x60000;

// Bits of AT_HWCAP on 64-bit ARM Linux; spelled out here so that detection compiles, and is tested, on any machine.
constexpr std::uint64_t hwcap_asimd = 1u << 1;
constexpr std::uint64_t hwcap_aes = 1u << 3;
constexpr std::uint64_t hwcap_asimd_dot_product = 1u << 20;
constexpr std::uint64_t hwcap_sve = 1u << 22;
constexpr std::uint64_t hwcap2_bf16 = 1u << 14;

void append_text(std::string& text, std::uint32_t value) {
  for (int byte = 0; byte < 4; ++byte) text.push_back(static_cast<char>((value >> (8 * byte)) & 0xffu));
}

// CPUID's text is padded with NULs at its end, and with spaces at either end.
std::string trimmed(const std::string& padded) {
  const std::string text = padded.substr(0, padded.find('\0'));
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::string vendor_of(const CpuidTable& table) {
  const CpuidRegisters leaf = table.at(0);
  std::string vendor;
  for (std::uint32_t part : {leaf.ebx, leaf.edx, leaf.ecx}) append_text(vendor, part);
  return trimmed(vendor);
}

std::string brand_of(const CpuidTable& table) {
  std::string brand;
  for (std::uint32_t leaf = extended_base + 2; leaf <= extended_base + 4; ++leaf) {
    const CpuidRegisters part = table.at(leaf);
    for (std::uint32_t value : {part.eax, part.ebx, part.ecx, part.edx}) append_text(brand, value);
  }
  return trimmed(brand);
}

// Leaf 4 (Intel) and 0x8000001D (AMD) have the same layout: one cache per subleaf, until the type is 0.
std::vector<CacheInfo> caches_of(const CpuidTable& table) {
  std::vector<CacheInfo> caches;
  for (std::uint32_t leaf : {std::uint32_t{4}, extended_base + 0x1d}) {
    for (std::uint32_t subleaf = 0; subleaf < 8; ++subleaf) {
      const CpuidRegisters r = table.at(leaf, subleaf);
      const std::uint32_t type = r.eax & 0x1fu;
      if (type == 0) break;
      const std::int64_t line = (r.ebx & 0xfffu) + 1;
      const std::int64_t partitions = ((r.ebx >> 12) & 0x3ffu) + 1;
      const std::int64_t ways = (r.ebx >> 22) + 1;
      const std::int64_t sets = static_cast<std::int64_t>(r.ecx) + 1;
      const char kind = type == 1 ? 'd' : type == 2 ? 'i' : 'u';
      const int shared_by = static_cast<int>((r.eax >> 14) & 0xfffu) + 1;
      caches.push_back({static_cast<int>((r.eax >> 5) & 0x7u), kind, ways * partitions * line * sets, line, shared_by});
    }
    if (!caches.empty()) break;
  }
  return caches;
}

void set_identity(CpuFeatures& features, const CpuidTable& table) {
  features.vendor = vendor_of(table);
  features.brand = brand_of(table);
  const std::uint32_t version = table.at(1).eax;
  const std::uint32_t base_family = (version >> 8) & 0xfu;
  const std::uint32_t base_model = (version >> 4) & 0xfu;
  const bool extended_model = base_family == 0x6 || base_family == 0xf;
  features.family = static_cast<int>(base_family == 0xf ? base_family + ((version >> 20) & 0xffu) : base_family);
  features.model = static_cast<int>(extended_model ? base_model + (((version >> 16) & 0xfu) << 4) : base_model);
  features.stepping = static_cast<int>(version & 0xfu);
}

std::string implementer_name(std::uint32_t implementer) {
  switch (implementer) {
    case 0x41:
      return "ARM";
    case 0x46:
      return "Fujitsu";
    case 0x48:
      return "HiSilicon";
    case 0x51:
      return "Qualcomm";
    case 0x61:
      return "Apple";
    case 0xc0:
      return "Ampere";
    default:
      return {};
  }
}

}  // namespace

CpuidRegisters CpuidTable::at(std::uint32_t leaf, std::uint32_t subleaf) const {
  const auto find = [this](std::uint32_t wanted, std::uint32_t wanted_subleaf) -> CpuidRegisters {
    for (const CpuidLeaf& entry : leaves) {
      if (entry.leaf == wanted && entry.subleaf == wanted_subleaf) return entry.registers;
    }
    return {};
  };
  const std::uint32_t base = leaf & extended_base;
  if (leaf > find(base, 0).eax) return {};
  return find(leaf, subleaf);
}

bool CpuFeatures::supports(Isa isa) const {
  switch (isa) {
    case Isa::reference:
      return true;
    // Highway's SSE4 target may use carry-less multiplication and AES instructions too.
    case Isa::sse4:
      return ssse3 && sse41 && sse42 && pclmul && aes;
    case Isa::avx2:
      return supports(Isa::sse4) && avx2 && fma && bmi1 && bmi2 && f16c && lzcnt;
    case Isa::avx512:
      return supports(Isa::avx2) && avx512f && avx512cd && avx512bw && avx512dq && avx512vl;
    case Isa::avx512_bf16:
      return supports(Isa::avx512) && avx512_bf16;
    case Isa::amx:
      return supports(Isa::avx512) && amx_tile && amx_bf16;
    // Likewise Highway's NEON target and AES.
    case Isa::neon:
      return neon && arm_aes;
    case Isa::neon_bf16:
      return supports(Isa::neon) && arm_bf16;
    case Isa::sve:
      return supports(Isa::neon) && sve;
  }
  return false;
}

// By the CPU, since the feature says nothing about speed. On Zen 4 vdpbf16ps starts as often as a multiply-add, two products a
// lane instead of one (measured); Zen 5 kept that. Intel's cores with it start it half as often as a multiply-add or less:
// there is nothing to be won. A CPU that is not known here is taken for slow.
bool CpuFeatures::fast_bf16_products() const {
  struct Known {
    const char* vendor;
    int family;
  };
  constexpr Known fast[] = {{"AuthenticAMD", 0x19}, {"AuthenticAMD", 0x1a}};  // Zen 4 (Zen 3 has no such products), Zen 5
  if (!supports(Isa::avx512_bf16)) return false;
  for (const Known& known : fast) {
    if (vendor == known.vendor && family == known.family) return true;
  }
  return false;
}

// How far ahead of its use each of several streams that come from memory is best asked for, by instructions; 0: not at all. The
// processor's own fetching keeps up with pure reading everywhere, but on Zen 5 not with streams that are computed with: over 2
// KB ahead is best there, and takes 0.55 to 0.77 of the time (measured). On Zen 3 asking lost at any distance (measured); a CPU
// that is not known here is taken for like it.
std::int64_t CpuFeatures::fetch_ahead_bytes() const {
  return vendor == "AuthenticAMD" && family == 0x1a ? 2304 : 0;
}

std::string CpuFeatures::feature_list() const {
  const std::pair<bool, const char*> known[] = {
      {ssse3, "ssse3"},
      {sse41, "sse4.1"},
      {sse42, "sse4.2"},
      {pclmul, "pclmul"},
      {aes || arm_aes, "aes"},
      {avx, "avx"},
      {f16c, "f16c"},
      {fma, "fma"},
      {avx2, "avx2"},
      {bmi1, "bmi1"},
      {bmi2, "bmi2"},
      {lzcnt, "lzcnt"},
      {avx_vnni, "avx_vnni"},
      {avx512f, "avx512f"},
      {avx512cd, "avx512cd"},
      {avx512bw, "avx512bw"},
      {avx512dq, "avx512dq"},
      {avx512vl, "avx512vl"},
      {avx512_vnni, "avx512_vnni"},
      {avx512_bf16, "avx512_bf16"},
      {avx512_fp16, "avx512_fp16"},
      {amx_tile, "amx_tile"},
      {amx_int8, "amx_int8"},
      {amx_bf16, "amx_bf16"},
      {neon, "neon"},
      {arm_dot_product, "dotprod"},
      {arm_bf16, "bf16"},
      {sve, "sve"},
  };
  std::string list;
  for (const auto& [present, name] : known) {
    if (!present) continue;
    if (!list.empty()) list += ' ';
    list += name;
  }
  return list;
}

std::int64_t CpuFeatures::cache_bytes(int level) const {
  for (const CacheInfo& cache : caches) {
    if (cache.level == level && cache.kind != 'i') return cache.bytes;
  }
  return 0;
}

CpuFeatures features_from_cpuid(const CpuidTable& table) {
  CpuFeatures features;
  set_identity(features, table);
  features.caches = caches_of(table);

  const CpuidRegisters leaf1 = table.at(1);
  const CpuidRegisters leaf7 = table.at(7, 0);
  const CpuidRegisters leaf7_1 = leaf7.eax >= 1 ? table.at(7, 1) : CpuidRegisters{};
  const CpuidRegisters extended1 = table.at(extended_base + 1);

  features.ssse3 = bit(leaf1.ecx, 9);
  features.sse41 = bit(leaf1.ecx, 19);
  features.sse42 = bit(leaf1.ecx, 20);
  features.pclmul = bit(leaf1.ecx, 1);
  features.aes = bit(leaf1.ecx, 25);
  features.bmi1 = bit(leaf7.ebx, 3);
  features.bmi2 = bit(leaf7.ebx, 8);
  features.lzcnt = bit(extended1.ecx, 5);

  // A CPU's AVX bit says nothing about the operating system: without OSXSAVE and the bits of XCR0 the first wide instruction
  // is a fault. Hypervisors and emulators do hide one without the other.
  const std::uint64_t xcr0 = bit(leaf1.ecx, 27) ? table.xcr0 : 0;
  features.avx = bit(leaf1.ecx, 28) && (xcr0 & xcr0_avx) == xcr0_avx;
  if (features.avx) {
    features.fma = bit(leaf1.ecx, 12);
    features.f16c = bit(leaf1.ecx, 29);
    features.avx2 = bit(leaf7.ebx, 5);
    features.avx_vnni = bit(leaf7_1.eax, 4);
  }
  features.avx512f = features.avx2 && bit(leaf7.ebx, 16) && (xcr0 & xcr0_avx512) == xcr0_avx512;
  if (features.avx512f) {
    features.avx512dq = bit(leaf7.ebx, 17);
    features.avx512cd = bit(leaf7.ebx, 28);
    features.avx512bw = bit(leaf7.ebx, 30);
    features.avx512vl = bit(leaf7.ebx, 31);
    features.avx512_vnni = bit(leaf7.ecx, 11);
    features.avx512_fp16 = bit(leaf7.edx, 23);
    features.avx512_bf16 = bit(leaf7_1.eax, 5);
  }
  features.amx_tile = bit(leaf7.edx, 24) && (xcr0 & xcr0_amx) == xcr0_amx;
  if (features.amx_tile) {
    features.amx_bf16 = bit(leaf7.edx, 22);
    features.amx_int8 = bit(leaf7.edx, 25);
  }
  return features;
}

CpuFeatures features_from_hwcaps(const ArmHwcaps& hwcaps) {
  CpuFeatures features;
  features.vendor = implementer_name(hwcaps.implementer);
  features.model = static_cast<int>(hwcaps.part);
  features.caches = hwcaps.caches;
  features.neon = (hwcaps.hwcap & hwcap_asimd) != 0;
  features.arm_aes = (hwcaps.hwcap & hwcap_aes) != 0;
  features.arm_dot_product = (hwcaps.hwcap & hwcap_asimd_dot_product) != 0;
  features.arm_bf16 = (hwcaps.hwcap2 & hwcap2_bf16) != 0;
  features.sve = (hwcaps.hwcap & hwcap_sve) != 0;
  return features;
}

const CpuFeatures& cpu_features() {
#if defined(__aarch64__)
  static const CpuFeatures features = features_from_hwcaps(read_hwcaps());
#else
  static const CpuFeatures features = features_from_cpuid(read_cpuid());
#endif
  return features;
}

}  // namespace polyhead::dispatch
