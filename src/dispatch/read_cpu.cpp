// The instructions and system files that tell what this machine is; everything else in this folder is arithmetic on them.
#include <cstdio>
#include <fstream>
#include <string>

#include "dispatch/cpu_features.hpp"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace polyhead::dispatch {

#if defined(__x86_64__) || defined(__i386__)

CpuidTable read_cpuid() {
  CpuidTable table;
  const auto add = [&table](std::uint32_t leaf, std::uint32_t subleaf) {
    CpuidLeaf entry{leaf, subleaf, {}};
    CpuidRegisters& r = entry.registers;
    __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
    table.leaves.push_back(entry);
    return entry.registers;
  };
  const std::uint32_t last = add(0, 0).eax;
  const std::uint32_t osxsave = 1u << 27;
  const bool uses_xsave = last >= 1 && (add(1, 0).ecx & osxsave) != 0;
  if (last >= 4) {
    for (std::uint32_t subleaf = 0; subleaf < 8 && (add(4, subleaf).eax & 0x1fu) != 0; ++subleaf) {
    }
  }
  if (last >= 7 && add(7, 0).eax >= 1) add(7, 1);

  const std::uint32_t extended = 0x80000000u;
  const std::uint32_t last_extended = add(extended, 0).eax;
  for (std::uint32_t leaf = extended + 1; leaf <= extended + 4 && leaf <= last_extended; ++leaf) add(leaf, 0);
  // Leaf 0x8000001D exists only where the CPU says so (topology extensions).
  if (last_extended >= extended + 0x1d && (table.at(extended + 1).ecx & (1u << 22)) != 0) {
    for (std::uint32_t subleaf = 0; subleaf < 8 && (add(extended + 0x1d, subleaf).eax & 0x1fu) != 0; ++subleaf) {
    }
  }
  if (uses_xsave) {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // no intrinsic: it would need a -m flag for this file
    table.xcr0 = (static_cast<std::uint64_t>(high) << 32) | low;
  }
  return table;
}

#else

CpuidTable read_cpuid() {
  return {};
}

#endif

#if defined(__linux__) && defined(__x86_64__)

bool request_tile_permission() {
  static const bool granted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
}

#else

bool request_tile_permission() {
  return false;
}

#endif

#if defined(__linux__) && defined(__aarch64__)

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<CacheInfo> read_caches() {
  std::vector<CacheInfo> caches;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    CacheInfo cache;
    long long size = 0;
    char unit = 'B';
    const std::string type = first_line(folder + "type");
    if (type.empty() || std::sscanf(first_line(folder + "size").c_str(), "%lld%c", &size, &unit) < 1) break;
    cache.kind = type == "Data" ? 'd' : type == "Instruction" ? 'i' : 'u';
    cache.bytes = unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
    std::sscanf(first_line(folder + "level").c_str(), "%d", &cache.level);
    long long line = 0;
    std::sscanf(first_line(folder + "coherency_line_size").c_str(), "%lld", &line);
    cache.line_bytes = line;
    caches.push_back(cache);
  }
  return caches;
}

}  // namespace

ArmHwcaps read_hwcaps() {
  ArmHwcaps hwcaps;
  hwcaps.hwcap = getauxval(AT_HWCAP);
  hwcaps.hwcap2 = getauxval(AT_HWCAP2);
  unsigned long long identification = 0;
  const std::string text = first_line("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
  if (std::sscanf(text.c_str(), "%llx", &identification) == 1) {
    hwcaps.implementer = static_cast<std::uint32_t>((identification >> 24) & 0xffu);
    hwcaps.part = static_cast<std::uint32_t>((identification >> 4) & 0xfffu);
  }
  hwcaps.caches = read_caches();
  return hwcaps;
}

#elif defined(__APPLE__) && defined(__aarch64__)

// Every 64-bit Apple CPU has these; the flags are what Linux would report.
ArmHwcaps read_hwcaps() {
  ArmHwcaps hwcaps;
  hwcaps.hwcap = (1u << 1) | (1u << 3) | (1u << 20);
  hwcaps.implementer = 0x61;
  return hwcaps;
}

#else

ArmHwcaps read_hwcaps() {
  return {};
}

#endif

}  // namespace polyhead::dispatch
