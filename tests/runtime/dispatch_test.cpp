// CPU detection with forged CPUID tables, selection of an instruction set, completeness of the kernel tables, and the limits
// that the platform puts on threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "dispatch/select_isa.hpp"
#include "platform/aligned_memory.hpp"
#include "platform/cpu_limits.hpp"
#include "polyhead/error.hpp"

namespace polyhead {
namespace {

using dispatch::CpuFeatures;
using dispatch::CpuidTable;

const std::vector<Isa> x86_isas = {Isa::reference, Isa::sse4, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

constexpr std::uint32_t ecx1_pclmul = 1u << 1, ecx1_ssse3 = 1u << 9, ecx1_fma = 1u << 12, ecx1_sse41 = 1u << 19,
                        ecx1_sse42 = 1u << 20, ecx1_aes = 1u << 25, ecx1_osxsave = 1u << 27, ecx1_avx = 1u << 28,
                        ecx1_f16c = 1u << 29;
constexpr std::uint32_t ebx7_bmi1 = 1u << 3, ebx7_avx2 = 1u << 5, ebx7_bmi2 = 1u << 8, ebx7_f = 1u << 16, ebx7_dq = 1u << 17,
                        ebx7_cd = 1u << 28, ebx7_bw = 1u << 30, ebx7_vl = 1u << 31;
constexpr std::uint32_t ecx_lzcnt = 1u << 5;

// The registers that detection looks at; a fully equipped AVX-512 server with AMX.
struct ForgedCpu {
  std::uint32_t vendor[3] = {0x756e6547, 0x6c65746e, 0x49656e69};  // EBX, ECX, EDX: "GenuineIntel"
  std::uint32_t version = 0x000806f8;
  std::uint32_t last_leaf = 0x20, last_extended_leaf = 0x80000008u;
  std::uint32_t ecx1 =
      ecx1_pclmul | ecx1_ssse3 | ecx1_fma | ecx1_sse41 | ecx1_sse42 | ecx1_aes | ecx1_osxsave | ecx1_avx | ecx1_f16c;
  std::uint32_t ebx7 = ebx7_bmi1 | ebx7_avx2 | ebx7_bmi2 | ebx7_f | ebx7_dq | ebx7_cd | ebx7_bw | ebx7_vl;
  std::uint32_t ecx7 = 1u << 11;
  std::uint32_t edx7 = (1u << 22) | (1u << 23) | (1u << 24) | (1u << 25);
  std::uint32_t eax7 = 1, eax7_1 = 1u << 5;
  std::uint32_t extended_ecx = ecx_lzcnt;
  std::uint64_t xcr0 = 0x602e7;

  CpuidTable table() const {
    CpuidTable forged;
    forged.leaves = {{0, 0, {last_leaf, vendor[0], vendor[1], vendor[2]}},
                     {1, 0, {version, 0, ecx1, 0}},
                     {7, 0, {eax7, ebx7, ecx7, edx7}},
                     {7, 1, {eax7_1, 0, 0, 0}},
                     {0x80000000u, 0, {last_extended_leaf, 0, 0, 0}},
                     {0x80000001u, 0, {0, 0, extended_ecx, 0}}};
    forged.xcr0 = xcr0;
    return forged;
  }
};

struct DetectionCase {
  const char* what;
  void (*change)(ForgedCpu&);
  Isa best;
};

const DetectionCase detection_cases[] = {
    {"everything", [](ForgedCpu&) {}, Isa::avx512},
    {"no OSXSAVE: XCR0 must not even be looked at", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_osxsave; }, Isa::sse4},
    {"XCR0 zero", [](ForgedCpu& c) { c.xcr0 = 0; }, Isa::sse4},
    {"XCR0 without AVX state (bit 2)", [](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{4}; }, Isa::sse4},
    {"XCR0 without SSE state (bit 1)", [](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{2}; }, Isa::sse4},
    {"XCR0 without AVX-512 mask state (bit 5)", [](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0x20}; }, Isa::avx2},
    {"XCR0 without AVX-512 upper halves (bit 6)", [](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0x40}; }, Isa::avx2},
    {"XCR0 without AVX-512 registers 16-31 (bit 7)", [](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0x80}; }, Isa::avx2},
    {"XCR0 with AVX-512 but without AVX state", [](ForgedCpu& c) { c.xcr0 = 0xe3; }, Isa::sse4},
    {"no AVX bit but AVX2 (a careless hypervisor)", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_avx; }, Isa::sse4},
    {"AVX2 without FMA", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_fma; }, Isa::sse4},
    {"AVX2 without F16C", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_f16c; }, Isa::sse4},
    {"AVX2 without BMI1", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_bmi1; }, Isa::sse4},
    {"AVX2 without BMI2", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_bmi2; }, Isa::sse4},
    {"AVX2 without LZCNT", [](ForgedCpu& c) { c.extended_ecx = 0; }, Isa::sse4},
    {"LZCNT's leaf beyond the last extended leaf", [](ForgedCpu& c) { c.last_extended_leaf = 0x80000000u; }, Isa::sse4},
    {"AVX-512 bits but no AVX2", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_avx2; }, Isa::sse4},
    {"no AVX-512 F", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_f; }, Isa::avx2},
    {"no AVX-512 CD", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_cd; }, Isa::avx2},
    {"no AVX-512 BW", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_bw; }, Isa::avx2},
    {"no AVX-512 DQ", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_dq; }, Isa::avx2},
    {"no AVX-512 VL", [](ForgedCpu& c) { c.ebx7 &= ~ebx7_vl; }, Isa::avx2},
    {"no SSE4.2", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_sse42; }, Isa::reference},
    {"no SSSE3", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_ssse3; }, Isa::reference},
    {"no PCLMUL", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_pclmul; }, Isa::reference},
    {"no AES", [](ForgedCpu& c) { c.ecx1 &= ~ecx1_aes; }, Isa::reference},
    {"leaf 7 beyond the last leaf: its data is another leaf's", [](ForgedCpu& c) { c.last_leaf = 4; }, Isa::sse4},
    {"leaf 1 beyond the last leaf", [](ForgedCpu& c) { c.last_leaf = 0; }, Isa::reference},
};

TEST(CpuFeatures, ForgedMachines) {
  for (const DetectionCase& test : detection_cases) {
    ForgedCpu cpu;
    test.change(cpu);
    const CpuFeatures features = dispatch::features_from_cpuid(cpu.table());
    EXPECT_STREQ(dispatch::isa_name(dispatch::select_isa(features, x86_isas, nullptr)), dispatch::isa_name(test.best))
        << test.what;
    EXPECT_FALSE(features.supports(Isa::neon) || features.supports(Isa::sve)) << test.what;
  }
}

TEST(CpuFeatures, ExtensionsNeedTheirRegisterState) {
  const CpuFeatures all = dispatch::features_from_cpuid(ForgedCpu().table());
  EXPECT_TRUE(all.avx512_bf16 && all.avx512_fp16 && all.avx512_vnni && all.amx_tile && all.amx_bf16 && all.amx_int8);

  ForgedCpu cpu;
  cpu.xcr0 &= ~std::uint64_t{0x20000};  // tile configuration not saved
  EXPECT_FALSE(dispatch::features_from_cpuid(cpu.table()).amx_tile);
  EXPECT_FALSE(dispatch::features_from_cpuid(cpu.table()).amx_bf16);
  cpu = ForgedCpu();
  cpu.xcr0 &= ~std::uint64_t{0x40000};  // tile data not saved
  EXPECT_FALSE(dispatch::features_from_cpuid(cpu.table()).amx_int8);
  cpu = ForgedCpu();
  cpu.xcr0 &= ~std::uint64_t{0x40};
  const CpuFeatures no_upper_halves = dispatch::features_from_cpuid(cpu.table());
  EXPECT_FALSE(no_upper_halves.avx512_bf16 || no_upper_halves.avx512_fp16 || no_upper_halves.avx512_vnni);
  EXPECT_TRUE(no_upper_halves.amx_tile);
  cpu = ForgedCpu();
  cpu.eax7 = 0;  // leaf 7 has no subleaf 1
  EXPECT_FALSE(dispatch::features_from_cpuid(cpu.table()).avx512_bf16);
}

// AMX needs AVX-512 beside its tiles and bf16 products, and the operating system's register state for all of them.
TEST(CpuFeatures, Amx) {
  const auto supported = [](void (*change)(ForgedCpu&)) {
    ForgedCpu cpu;
    change(cpu);
    return dispatch::features_from_cpuid(cpu.table()).supports(Isa::amx);
  };
  EXPECT_TRUE(supported([](ForgedCpu&) {}));
  EXPECT_FALSE(supported([](ForgedCpu& c) { c.edx7 &= ~(1u << 24); })) << "no tiles";
  EXPECT_FALSE(supported([](ForgedCpu& c) { c.edx7 &= ~(1u << 22); })) << "no bf16 products";
  EXPECT_TRUE(supported([](ForgedCpu& c) { c.edx7 &= ~(1u << 25); })) << "int8 products are not needed";
  EXPECT_FALSE(supported([](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0x20000}; })) << "tile configuration not saved";
  EXPECT_FALSE(supported([](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0x40000}; })) << "tile data not saved";
  EXPECT_FALSE(supported([](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0xe0}; })) << "AVX-512 state not saved";
  EXPECT_FALSE(supported([](ForgedCpu& c) { c.ebx7 &= ~ebx7_vl; })) << "no AVX-512 VL";
}

// A forged CPU with the feature of bf16 products, by vendor and family.
ForgedCpu forged_cpu(const char (&vendor)[13], std::uint32_t version) {
  ForgedCpu cpu;
  std::memcpy(&cpu.vendor[0], vendor, 4);
  std::memcpy(&cpu.vendor[2], vendor + 4, 4);  // the text goes on in EDX
  std::memcpy(&cpu.vendor[1], vendor + 8, 4);
  cpu.version = version;
  return cpu;
}

// Products of bf16 pairs need the CPU's feature and AVX-512 with its register state; they are fast only where they are known to
// be.
TEST(CpuFeatures, ProductsOfBf16Pairs) {
  struct Machine {
    const char* what;
    char vendor[13];
    std::uint32_t version;
    bool fast;
    bool asks_ahead = false;
  };
  const Machine machines[] = {{"Zen 4, EPYC 9004", "AuthenticAMD", 0x00a10f11, true},
                              {"Zen 4, Ryzen 7040", "AuthenticAMD", 0x00a70f41, true},
                              {"Zen 5", "AuthenticAMD", 0x00b40f40, true, true},
                              {"an AMD family that is not known", "AuthenticAMD", 0x00c00f10, false},
                              {"Cooper Lake", "GenuineIntel", 0x0005065b, false},
                              {"Sapphire Rapids", "GenuineIntel", 0x000806f8, false},
                              {"another vendor with AMD's number", "HygonGenuine", 0x00a10f11, false}};
  for (const Machine& machine : machines) {
    const CpuFeatures features = dispatch::features_from_cpuid(forged_cpu(machine.vendor, machine.version).table());
    EXPECT_STREQ(features.vendor.c_str(), machine.vendor);
    EXPECT_TRUE(features.supports(Isa::avx512_bf16)) << machine.what;
    EXPECT_EQ(features.fast_bf16_products(), machine.fast) << machine.what;
    EXPECT_EQ(features.fetch_ahead_bytes() > 0, machine.asks_ahead) << machine.what;
    const Isa best = machine.fast ? Isa::avx512_bf16 : Isa::avx512;
    EXPECT_STREQ(dispatch::isa_name(dispatch::select_isa(features, x86_isas, nullptr)), dispatch::isa_name(best))
        << machine.what;
    EXPECT_EQ(dispatch::select_isa(features, x86_isas, "avx512_bf16"), Isa::avx512_bf16) << machine.what;
    EXPECT_EQ(dispatch::select_isa(features, x86_isas, "avx512"), Isa::avx512) << machine.what;
    EXPECT_EQ(dispatch::select_isa(features, {Isa::reference, Isa::avx2, Isa::avx512}, nullptr), Isa::avx512) << machine.what;
  }
  const auto best_of_zen4 = [](void (*change)(ForgedCpu&)) {
    ForgedCpu cpu = forged_cpu("AuthenticAMD", 0x00a10f11);
    change(cpu);
    const CpuFeatures features = dispatch::features_from_cpuid(cpu.table());
    EXPECT_FALSE(features.supports(Isa::avx512_bf16) || features.fast_bf16_products());
    return dispatch::select_isa(features, x86_isas, nullptr);
  };
  EXPECT_EQ(best_of_zen4([](ForgedCpu& c) { c.eax7_1 = 0; }), Isa::avx512) << "the feature's bit is missing";
  EXPECT_EQ(best_of_zen4([](ForgedCpu& c) { c.eax7 = 0; }), Isa::avx512) << "its leaf is missing";
  EXPECT_EQ(best_of_zen4([](ForgedCpu& c) { c.xcr0 &= ~std::uint64_t{0x80}; }), Isa::avx2) << "no state for registers 16-31";
  EXPECT_EQ(best_of_zen4([](ForgedCpu& c) { c.ebx7 &= ~ebx7_vl; }), Isa::avx2) << "no AVX-512 VL";
}

TEST(CpuFeatures, IdentityAndCaches) {
  CpuidTable table = ForgedCpu().table();
  const char brand[48] = "  Forged CPU 9000 @ 3.2 GHz   ";
  for (std::uint32_t part = 0; part < 3; ++part) {
    std::uint32_t words[4];
    std::memcpy(words, brand + 16 * part, 16);
    table.leaves.push_back({0x80000002u + part, 0, {words[0], words[1], words[2], words[3]}});
  }
  // 48 KB of 12 ways, 64 sets, 64-byte lines; then a shared 2 MB of 16 ways, 2048 sets.
  table.leaves.push_back({4, 0, {(1u << 14) | (1u << 5) | 1u, (11u << 22) | 63u, 63, 0}});
  table.leaves.push_back({4, 1, {(1u << 5) | 2u, (7u << 22) | 63u, 63, 0}});
  table.leaves.push_back({4, 2, {(3u << 14) | (2u << 5) | 3u, (15u << 22) | 63u, 2047, 0}});
  table.leaves.push_back({4, 3, {0, 0, 0, 0}});
  const CpuFeatures features = dispatch::features_from_cpuid(table);
  EXPECT_EQ(features.vendor, "GenuineIntel");
  EXPECT_EQ(features.brand, "Forged CPU 9000 @ 3.2 GHz");
  EXPECT_EQ(features.family, 6);
  EXPECT_EQ(features.model, 0x8f);
  EXPECT_EQ(features.stepping, 8);
  ASSERT_EQ(features.caches.size(), 3u);
  EXPECT_EQ(features.cache_bytes(1), 48 * 1024);
  EXPECT_EQ(features.caches[1].kind, 'i');
  EXPECT_EQ(features.cache_bytes(2), 2 * 1024 * 1024);
  EXPECT_EQ(features.caches[2].shared_by, 4);
  EXPECT_EQ(features.cache_bytes(3), 0);
}

TEST(CpuFeatures, EmptyTable) {
  const CpuFeatures features = dispatch::features_from_cpuid({});
  EXPECT_EQ(features.feature_list(), "");
  EXPECT_EQ(dispatch::select_isa(features, x86_isas, nullptr), Isa::reference);
}

template <typename Function>
Error error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::ok, "nothing was thrown");
}

TEST(CpuFeatures, Arm) {
  const std::vector<Isa> built = {Isa::reference, Isa::neon, Isa::neon_bf16, Isa::sve};
  dispatch::ArmHwcaps hwcaps;
  const auto best = [&] { return dispatch::select_isa(dispatch::features_from_hwcaps(hwcaps), built, nullptr); };
  EXPECT_EQ(best(), Isa::reference);
  hwcaps.hwcap = 1u << 1;  // ASIMD alone, as on a Raspberry Pi 4
  EXPECT_EQ(best(), Isa::reference);
  hwcaps.hwcap |= 1u << 3;
  EXPECT_EQ(best(), Isa::neon);
  const auto forced = [&](const char* name) {
    return dispatch::select_isa(dispatch::features_from_hwcaps(hwcaps), built, name);
  };
  EXPECT_EQ(error_of([&] { forced("neon_bf16"); }).code(), ErrorCode::unsupported);
  hwcaps.hwcap2 = 1u << 14;
  EXPECT_EQ(best(), Isa::neon) << "products of bf16 are there, and nobody asked for them";
  EXPECT_EQ(forced("neon_bf16"), Isa::neon_bf16);
  EXPECT_EQ(dispatch::next_plainer(Isa::neon_bf16), Isa::neon);
  hwcaps.hwcap |= 1u << 22;
  EXPECT_EQ(best(), Isa::sve);
  EXPECT_EQ(forced("neon_bf16"), Isa::neon_bf16);
  hwcaps.hwcap &= ~std::uint64_t{1u << 3};
  EXPECT_EQ(best(), Isa::reference);
}

TEST(CpuFeatures, ThisMachineIsConsistent) {
  const CpuFeatures& features = dispatch::cpu_features();
  EXPECT_EQ(&features, &dispatch::cpu_features());
  EXPECT_TRUE(features.supports(Isa::reference));
#if defined(__x86_64__)
  EXPECT_EQ(features.vendor.size(), 12u);
#if defined(__GNUC__)
  __builtin_cpu_init();
  EXPECT_EQ(features.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(features.fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(features.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(features.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
#endif
#endif
}

TEST(SelectIsa, Forced) {
  ForgedCpu without_avx512;
  without_avx512.xcr0 = 7;
  const CpuFeatures features = dispatch::features_from_cpuid(without_avx512.table());
  for (Isa isa : {Isa::reference, Isa::sse4, Isa::avx2}) {
    EXPECT_EQ(dispatch::select_isa(features, x86_isas, dispatch::isa_name(isa)), isa);
    EXPECT_EQ(dispatch::require_isa(features, x86_isas, isa), isa);
  }
  EXPECT_EQ(dispatch::select_isa(features, x86_isas, ""), Isa::avx2);

  const Error unknown = error_of([&] { dispatch::select_isa(features, x86_isas, "avx3"); });
  EXPECT_EQ(unknown.code(), ErrorCode::invalid_argument);
  EXPECT_NE(std::string(unknown.what()).find("avx3"), std::string::npos) << unknown.what();
  EXPECT_NE(std::string(unknown.what()).find("reference, sse4, avx2, avx512, avx512_bf16, neon, neon_bf16, sve, amx"),
            std::string::npos)
      << unknown.what();
  EXPECT_EQ(error_of([&] { dispatch::select_isa(features, x86_isas, "AVX2"); }).code(), ErrorCode::invalid_argument);

  const Error absent = error_of([&] { dispatch::select_isa(features, x86_isas, "avx512"); });
  EXPECT_EQ(absent.code(), ErrorCode::unsupported);
  EXPECT_NE(std::string(absent.what()).find("machine"), std::string::npos) << absent.what();
  const Error not_built = error_of([&] { dispatch::select_isa(features, {Isa::reference, Isa::avx2}, "sse4"); });
  EXPECT_EQ(not_built.code(), ErrorCode::unsupported);
  EXPECT_NE(std::string(not_built.what()).find("build"), std::string::npos) << not_built.what();
  EXPECT_EQ(error_of([&] { dispatch::require_isa(features, x86_isas, Isa::avx512); }).code(), ErrorCode::unsupported);
}

TEST(SelectIsa, MissingRowsOfTheBuildAreSkipped) {
  const CpuFeatures features = dispatch::features_from_cpuid(ForgedCpu().table());
  EXPECT_EQ(dispatch::select_isa(features, {Isa::reference, Isa::avx2}, nullptr), Isa::avx2);
  EXPECT_EQ(dispatch::select_isa(features, {Isa::reference}, nullptr), Isa::reference);
}

TEST(SelectIsa, AmxOnlyWhenAskedFor) {
  const CpuFeatures features = dispatch::features_from_cpuid(ForgedCpu().table());
  EXPECT_EQ(dispatch::runnable(features, x86_isas).back(), Isa::amx);
  EXPECT_EQ(dispatch::select_isa(features, x86_isas, nullptr), Isa::avx512);
  EXPECT_EQ(dispatch::select_isa(features, x86_isas, ""), Isa::avx512);
  EXPECT_EQ(dispatch::select_isa(features, x86_isas, "amx"), Isa::amx);
  EXPECT_EQ(dispatch::require_isa(features, x86_isas, Isa::amx), Isa::amx);
  EXPECT_EQ(dispatch::select_isa(features, {Isa::reference, Isa::amx}, nullptr), Isa::reference);
  const std::vector<Isa> without = {Isa::reference, Isa::avx512};
  EXPECT_EQ(error_of([&] { dispatch::select_isa(features, without, "amx"); }).code(), ErrorCode::unsupported);
}

TEST(SelectIsa, PermissionForTiles) {
  static int asked;
  asked = 0;
  const auto yes = +[] { return ++asked > 0; };
  const auto no = +[] { return ++asked < 0; };
  for (const bool forced : {false, true}) {
    for (const Isa isa : {Isa::reference, Isa::avx2, Isa::avx512}) {
      EXPECT_EQ(dispatch::permitted_isa(isa, x86_isas, forced, no), isa);
    }
    EXPECT_EQ(asked, 0) << "only amx needs the permission";
    EXPECT_EQ(dispatch::permitted_isa(Isa::amx, x86_isas, forced, yes), Isa::amx);
    EXPECT_EQ(asked, 1);
    asked = 0;
  }
  EXPECT_EQ(dispatch::permitted_isa(Isa::amx, x86_isas, false, no), Isa::avx512);
  EXPECT_EQ(dispatch::permitted_isa(Isa::avx512_bf16, x86_isas, false, no), Isa::avx512_bf16);
  EXPECT_EQ(dispatch::permitted_isa(Isa::amx, {Isa::reference, Isa::avx2, Isa::amx}, false, no), Isa::avx2);
  EXPECT_EQ(dispatch::permitted_isa(Isa::amx, {Isa::reference, Isa::amx}, false, no), Isa::reference);
  const Error refused = error_of([&] { dispatch::permitted_isa(Isa::amx, x86_isas, true, no); });
  EXPECT_EQ(refused.code(), ErrorCode::unsupported);
  EXPECT_NE(std::string(refused.what()).find("ARCH_REQ_XCOMP_PERM"), std::string::npos) << refused.what();
#if defined(__x86_64__) && defined(__linux__)
  if (!dispatch::cpu_features().amx_tile) {
    EXPECT_FALSE(dispatch::request_tile_permission());
  }
#endif
}

TEST(KernelTable, EveryRowIsReachable) {
  std::map<std::string, std::set<Isa>> targets;
  for (const dispatch::KernelRow& row : dispatch::kernel_rows()) {
    EXPECT_TRUE(targets[row.kind].insert(row.target).second) << row.kind << " appears twice";
    EXPECT_EQ(std::string(row.name), std::string(row.kind) + "_" + dispatch::isa_name(row.target));
  }
  targets.erase("fast_attention_f32");  // attention_f32 takes its place
  // Attention's three for each data type, two for caches of i8, a GEMM for each kind of weights, the row-wise ones and masks'.
  const std::size_t of_caches = dispatch::cache_dtypes().size() - dispatch::attention_dtypes().size();
  EXPECT_EQ(targets.size(), 3 * dispatch::attention_dtypes().size() + 2 * of_caches + dispatch::weight_types().size() + 4);
  for (const auto& [kind, isas] : targets) EXPECT_EQ(isas.count(Isa::reference), 1u) << kind;
}

TEST(KernelTable, CompleteForEveryBuiltTarget) {
  for (Isa isa : dispatch::built_isas()) {
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    EXPECT_EQ(table.isa, isa);
    std::map<std::string, const char*> names = {{"layer_norm_f32", table.layer_norm_f32->name},
                                                {"softmax_f32", table.softmax_f32->name},
                                                {"activation_f32", table.activation_f32->name},
                                                {"mask_marks", table.mask_marks->name}};
    for (const DType dtype : dispatch::attention_dtypes()) {
      const dispatch::AttentionKernels kernels = dispatch::attention_kernels(table, dtype);
      const std::string suffix = std::string("_") + name(dtype);
      names["attention" + suffix] = kernels.transposed->name;
      names["decode" + suffix] = kernels.decode->name;
      names["merge" + suffix] = kernels.merge->name;
      EXPECT_EQ(kernels.fast, dtype == DType::f32 ? table.fast_attention_f32 : kernels.transposed);
      const simd::Element element = dtype == DType::f32    ? simd::Element::f32
                                    : dtype == DType::bf16 ? simd::Element::bf16
                                                           : simd::Element::f16;
      for (const simd::AttentionKernel* kernel : {kernels.transposed, kernels.fast, kernels.decode}) {
        EXPECT_EQ(kernel->element, element) << kernel->name;
      }
      EXPECT_EQ(kernels.merge->element, element) << kernels.merge->name;
    }
    EXPECT_THROW(dispatch::attention_kernels(table, DType::u8), Error);
#if defined(POLYHEAD_HAVE_I8)
    {
      const dispatch::AttentionKernels kernels = dispatch::attention_kernels(table, DType::i8);
      names["attention_i8"] = kernels.transposed->name;
      names["decode_i8"] = table.decode_i8->name;
      EXPECT_NE(std::string(kernels.decode->name).find("decode_i8"), std::string::npos);
      EXPECT_EQ(kernels.decode->key_block, table.decode_i8->key_block);
      EXPECT_EQ(kernels.merge, table.merge_f32);
      for (const simd::AttentionKernel* kernel : {kernels.transposed, kernels.fast, kernels.decode}) {
        EXPECT_EQ(kernel->element, simd::Element::i8) << kernel->name;
      }
    }
#endif
    const std::map<WeightType, std::string> gemms = {{WeightType::f32, "gemm_f32"},
                                                     {WeightType::bf16, "gemm_f32_bf16"},
                                                     {WeightType::f16, "gemm_f32_f16"},
                                                     {WeightType::int8, "gemm_f32_i8"},
                                                     {WeightType::int4, "gemm_f32_i4"},
                                                     {WeightType::int8_dynamic, "gemm_i8_i8"},
                                                     {WeightType::bf16_dynamic, "gemm_bf16_bf16"}};
    for (const WeightType weights : dispatch::weight_types()) {
      names[gemms.at(weights)] = dispatch::gemm_kernel(table, weights).name;
    }
#if defined(POLYHEAD_HAVE_I8)
    names["gemm_i8_i8"] = table.gemm_i8_i8->name;
    const simd::GemmKernel& products = dispatch::gemm_kernel(table, WeightType::int8_dynamic);
    const bool is_vnni = std::string(products.name) == "vnni_gemm_i8_i8_avx512";
    const bool has_avx512 = std::string(table.gemm_i8_i8->name) == "gemm_i8_i8_avx512";
    EXPECT_EQ(is_vnni, has_avx512 && dispatch::cpu_features().supports(Isa::avx512) && dispatch::cpu_features().avx512_vnni);
    EXPECT_TRUE(is_vnni || &products == table.gemm_i8_i8) << products.name;
    EXPECT_EQ(products.panel_width, table.gemm_i8_i8->panel_width) << "both read the same packed weights";
#endif
    EXPECT_THROW(dispatch::gemm_kernel(table, static_cast<WeightType>(99)), Error);
    const bool has_fast = isa == Isa::amx;
    EXPECT_STREQ(table.fast_attention_f32->name, has_fast ? "fast_attention_f32_amx" : table.attention_f32->name);
    for (const auto& entry : names) {
      const std::string& kind = entry.first;
      // The row of this target where there is one, or else a plainer one's.
      Isa expected = isa;
      const auto has_row = [&](Isa target) {
        for (const dispatch::KernelRow& row : dispatch::kernel_rows()) {
          if (row.kind == kind && row.target == target) return true;
        }
        return false;
      };
      while (!has_row(expected)) expected = dispatch::next_plainer(expected);
      EXPECT_EQ(std::string(entry.second), kind + "_" + dispatch::isa_name(expected));
    }
  }
}

TEST(KernelTable, TargetOfAnotherArchitectureIsRefused) {
  for (Isa isa : {Isa::avx512, Isa::sve}) {
    bool built = false;
    for (Isa other : dispatch::built_isas()) built = built || other == isa;
    if (built) continue;
    EXPECT_EQ(error_of([&] { dispatch::kernel_table(isa); }).code(), ErrorCode::unsupported);
  }
  EXPECT_EQ(error_of([&] { dispatch::kernel_table(static_cast<Isa>(77)); }).code(), ErrorCode::unsupported);
}

// ---- limits on threads

platform::FileReader forged_files(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
}

TEST(CpuLimits, CpuLists) {
  EXPECT_EQ(platform::parse_cpu_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(platform::parse_cpu_list("5"), std::vector<int>{5});
  for (const char* text : {"", "x", "3-1", "-1", "0-", "0-99999999999", "1,,2"}) {
    EXPECT_TRUE(platform::parse_cpu_list(text).empty()) << text;
  }
}

TEST(CpuLimits, Quotas) {
  EXPECT_EQ(platform::cpus_from_cpu_max("400000 100000\n"), 4);
  EXPECT_EQ(platform::cpus_from_cpu_max("150000 100000\n"), 2);
  EXPECT_EQ(platform::cpus_from_cpu_max("1000 100000"), 1);
  for (const char* text : {"max 100000\n", "", "400000", "400000 0", "-1 100000", "abc 100000", "400000 xyz"}) {
    EXPECT_FALSE(platform::cpus_from_cpu_max(text)) << text;
  }
  EXPECT_EQ(platform::cpus_from_cfs_quota("250000\n", "100000\n"), 3);
  EXPECT_FALSE(platform::cpus_from_cfs_quota("-1\n", "100000\n"));
}

TEST(CpuLimits, Version2GroupAndItsParents) {
  const std::string mount = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  const auto files = forged_files({{"/proc/self/cgroup", "0::/machine/job\n"},
                                   {"/proc/self/mountinfo", mount},
                                   {"/sys/fs/cgroup/machine/job/cpu.max", "max 100000\n"},
                                   {"/sys/fs/cgroup/machine/cpu.max", "350000 100000\n"}});
  EXPECT_EQ(platform::cgroup_cpu_quota(files), 4);
  EXPECT_EQ(platform::default_thread_count({0, 1, 2, 3, 4, 5, 6, 7}, files), 4);
  EXPECT_EQ(platform::default_thread_count({6, 7}, files), 2);
}

TEST(CpuLimits, Version2InsideAContainer) {
  const auto files = forged_files({{"/proc/self/cgroup", "0::/\n"},
                                   {"/proc/self/mountinfo", "29 22 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
                                   {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}});
  EXPECT_EQ(platform::cgroup_cpu_quota(files), 2);
}

TEST(CpuLimits, Version1WithTheHostsPathInAContainer) {
  const auto files = forged_files(
      {{"/proc/self/cgroup", "5:memory:/docker/abc\n4:cpuset:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"},
       {"/proc/self/mountinfo",
        "30 29 0:27 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
        "31 29 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro shared:9 - cgroup cgroup rw,cpu,cpuacct\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(platform::cgroup_cpu_quota(files), 2);
}

TEST(CpuLimits, NoOrBrokenFilesMeanNoLimit) {
  EXPECT_FALSE(platform::cgroup_cpu_quota(forged_files({})));
  EXPECT_FALSE(
      platform::cgroup_cpu_quota(forged_files({{"/proc/self/cgroup", "garbage\n::\n"}, {"/proc/self/mountinfo", "- -\n"}})));
  EXPECT_EQ(platform::default_thread_count({0, 1, 2}, forged_files({})), 3);
  EXPECT_EQ(platform::default_thread_count({}, forged_files({})), 1);
}

TEST(CpuLimits, HyperThreadsOfACoreCountOnce) {
  std::map<std::string, std::string> files;
  for (int cpu = 0; cpu < 8; ++cpu) {
    files["/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list"] =
        std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n";
  }
  EXPECT_EQ(platform::count_cores({0, 1, 2, 3, 4, 5, 6, 7}, forged_files(files)), 4);
  EXPECT_EQ(platform::count_cores({4, 5}, forged_files(files)), 2);
  EXPECT_EQ(platform::count_cores({1, 5}, forged_files(files)), 1);
  files["/sys/devices/system/cpu/cpu7/topology/thread_siblings_list"] = "nonsense";
  EXPECT_EQ(platform::count_cores({3, 7}, forged_files(files)), 2);
}

#if defined(__linux__)
TEST(CpuLimits, FollowsTheAffinityMask) {
  const std::vector<int> before = platform::allowed_cpus();
  ASSERT_FALSE(before.empty());
  EXPECT_GE(platform::default_thread_count(), 1);
  EXPECT_LE(platform::default_thread_count(), static_cast<int>(before.size()));
  ASSERT_TRUE(platform::pin_current_thread(before.back()));
  EXPECT_EQ(platform::allowed_cpus(), std::vector<int>{before.back()});
  EXPECT_EQ(platform::default_thread_count(), 1);
  EXPECT_TRUE(platform::set_current_thread_cpus(before));
  EXPECT_EQ(platform::allowed_cpus(), before);
  EXPECT_FALSE(platform::pin_current_thread(-1));
  EXPECT_FALSE(platform::pin_current_thread(1 << 20));
  EXPECT_EQ(platform::allowed_cpus(), before);
}
#endif

TEST(AlignedMemory, AlignmentAndOwnership) {
  EXPECT_EQ(platform::aligned_allocate(0), nullptr);
  const auto aligned = [](void* memory, std::size_t to) { return reinterpret_cast<std::uintptr_t>(memory) % to == 0; };
  for (std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{4096}, platform::huge_page_bytes - 1}) {
    platform::AlignedBuffer buffer(bytes);
    EXPECT_TRUE(aligned(buffer.data(), 64)) << bytes;
    std::memset(buffer.data(), 0xab, bytes);
  }
  platform::AlignedBuffer large(platform::huge_page_bytes + 3);
  EXPECT_TRUE(aligned(large.data(), platform::huge_page_bytes));
  std::memset(large.data(), 1, large.size());
  void* const memory = large.data();
  platform::AlignedBuffer moved = std::move(large);
  EXPECT_EQ(moved.data(), memory);
  moved.reserve(16);
  EXPECT_EQ(moved.data(), memory);
  moved.reserve(platform::huge_page_bytes * 2);
  EXPECT_EQ(moved.size(), platform::huge_page_bytes * 2);
}

TEST(AlignedMemory, ImpossibleSizesAreErrors) {
  for (std::size_t bytes : {SIZE_MAX, SIZE_MAX - 32, SIZE_MAX / 2}) {
    EXPECT_EQ(error_of([&] { platform::aligned_allocate(bytes); }).code(), ErrorCode::out_of_memory) << bytes;
  }
}

}  // namespace
}  // namespace polyhead
