#include "dispatch/select_isa.hpp"

#include <algorithm>
#include <cstddef>

#include "polyhead/error.hpp"

namespace polyhead::dispatch {
namespace {

bool contains(const std::vector<Isa>& isas, Isa isa) {
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// Where a target stands among all_isas().
std::ptrdiff_t rank(Isa isa) {
  return std::find(all_isas().begin(), all_isas().end(), isa) - all_isas().begin();
}

}  // namespace

const std::vector<Isa>& all_isas() {
  static const std::vector<Isa> isas = {Isa::reference, Isa::sse4,      Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                                        Isa::neon,      Isa::neon_bf16, Isa::sve,  Isa::amx};
  return isas;
}

std::string names_of(const std::vector<Isa>& isas) {
  std::string names;
  for (Isa isa : isas) {
    if (!names.empty()) names += ", ";
    names += isa_name(isa);
  }
  return names;
}

std::vector<Isa> runnable(const CpuFeatures& features, const std::vector<Isa>& built) {
  std::vector<Isa> isas;
  for (Isa isa : built) {
    if (features.supports(isa)) isas.push_back(isa);
  }
  std::sort(isas.begin(), isas.end(), [](Isa a, Isa b) { return rank(a) < rank(b); });
  return isas;
}

Isa select_isa(const CpuFeatures& features, const std::vector<Isa>& built, const char* forced_name) {
  const std::vector<Isa> choices = runnable(features, built);
  if (forced_name == nullptr || *forced_name == '\0') {
    const auto best = std::find_if(choices.rbegin(), choices.rend(), [&](Isa isa) { return chosen_unasked(isa, features); });
    return best == choices.rend() ? Isa::reference : *best;
  }

  const std::string name = forced_name;
  const auto known = std::find_if(all_isas().begin(), all_isas().end(), [&](Isa isa) { return name == isa_name(isa); });
  if (known == all_isas().end()) {
    throw Error(ErrorCode::invalid_argument,
                "instruction set (POLYHEAD_ISA): \"" + name + "\" does not exist; expected one of " + names_of(all_isas()));
  }
  return require_isa(features, built, *known);
}

Isa require_isa(const CpuFeatures& features, const std::vector<Isa>& built, Isa wanted) {
  const std::vector<Isa> choices = runnable(features, built);
  if (contains(choices, wanted)) return wanted;
  const char* reason =
      contains(built, wanted) ? "this machine (CPU or operating system) cannot run " : "this build has no kernels for ";
  throw Error(ErrorCode::unsupported,
              "instruction set: " + std::string(reason) + isa_name(wanted) + "; available: " + names_of(choices));
}

Isa permitted_isa(Isa isa, const std::vector<Isa>& built, bool forced, bool (*ask)()) {
  if (isa != Isa::amx || ask()) return isa;
  if (!forced) {
    do {
      isa = next_plainer(isa);
    } while (!contains(built, isa));
    return isa;
  }
  throw Error(ErrorCode::unsupported,
              "instruction set: the operating system refuses this process AMX tiles (arch_prctl, ARCH_REQ_XCOMP_PERM), which " +
                  std::string(isa_name(isa)) + " needs");
}

}  // namespace polyhead::dispatch
