#include "command.hpp"

#include <fmt/format.h>

#include <charconv>

#include "dispatch/select_isa.hpp"

namespace polyhead::cli {

void RuntimeChoice::add_options(CLI::App& command) {
  command.add_option("--threads", threads, "Threads; 0: as many as this process may use")
      ->check(CLI::Range(0, 4096))
      ->type_name("N");
  command.add_option("--isa", isa, "Force an instruction set (see polyhead info); also by the variable POLYHEAD_ISA")
      ->type_name("NAME");
}

Runtime RuntimeChoice::make() const {
  RuntimeOptions options;
  options.threads = threads;
  if (!isa.empty()) options.isa = parse_isa(isa);
  return Runtime(options);
}

Isa parse_isa(const std::string& wanted) {
  for (const Isa isa : dispatch::all_isas()) {
    if (wanted == name(isa)) return isa;
  }
  throw UsageError(
      fmt::format("--isa: no instruction set is called '{}'; there are {}", wanted, dispatch::names_of(dispatch::all_isas())));
}

Causal parse_causal(const std::string& text) {
  if (text.empty()) return Causal::none;
  if (text == "top-left") return Causal::top_left;
  if (text == "bottom-right") return Causal::bottom_right;
  throw UsageError(fmt::format("--causal: '{}' is neither top-left nor bottom-right", text));
}

Precision parse_precision(const std::string& text) {
  for (const Precision precision : {Precision::strict, Precision::fast}) {
    if (text == name(precision)) return precision;
  }
  throw UsageError(fmt::format("--precision: '{}' is neither strict nor fast", text));
}

WeightType parse_weight_type(const std::string& text) {
  for (const WeightType weights : {WeightType::f32, WeightType::bf16, WeightType::f16, WeightType::int8, WeightType::int4,
                                   WeightType::int8_dynamic, WeightType::bf16_dynamic}) {
    if (text == name(weights)) return weights;
  }
  throw UsageError(
      fmt::format("--weight-type: '{}' is none of f32, bf16, f16, int8, int4, int8_dynamic and bf16_dynamic", text));
}

Mask parse_window(const std::string& text) {
  if (text.empty()) return Mask::none();
  std::int64_t numbers[3] = {0, 0, 0};  // left, right, kept
  const char* at = text.data();
  const char* const last = at + text.size();
  bool reads = true;
  int count = 0;
  while (reads && count < 3 && at != last) {
    reads = count == 0 || *at++ == ',';
    const auto [end, error] = std::from_chars(at, last, numbers[count]);
    reads = reads && error == std::errc();
    at = end;
    ++count;
  }
  const auto [left, right, kept] = numbers;
  if (reads && at == last && count >= 2 && left >= -1 && right >= -1 && kept >= 0) return Mask::window(left, right, kept);
  throw UsageError(
      fmt::format("--window: '{}' is not LEFT,RIGHT or LEFT,RIGHT,KEPT with sizes of at least 0, or -1 for no limit", text));
}

}  // namespace polyhead::cli
