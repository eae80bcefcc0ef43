// What the subcommands share: exit codes, errors, and the options that choose threads and instruction set.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/weight_type.hpp"

namespace polyhead::cli {

enum ExitCode : int { exit_success = 0, exit_failure = 1, exit_usage = 2 };

// The command line asks for something that cannot be; anything else that goes wrong is a failure.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// --threads and --isa, the same in every command.
struct RuntimeChoice {
  int threads = 0;
  std::string isa;

  void add_options(CLI::App& command);
  Runtime make() const;
};

// Errors: UsageError for a name that no target has.
Isa parse_isa(const std::string& name);
// "top-left" or "bottom-right"; an empty text is no causal mask.
Causal parse_causal(const std::string& text);
// "strict" or "fast".
Precision parse_precision(const std::string& text);
// "f32", "bf16", "f16", "int8", "int4", "int8_dynamic" or "bf16_dynamic".
WeightType parse_weight_type(const std::string& text);
// "LEFT,RIGHT", each a number of keys or -1 for no limit, or "LEFT,RIGHT,KEPT"; an empty text is no window.
Mask parse_window(const std::string& text);

// Each adds its subcommand and returns what to do once the command line has been read.
using Action = std::function<void()>;
struct Command {
  CLI::App* app;
  Action action;
};
Command add_info(CLI::App& parent);
Command add_run_attention(CLI::App& parent);
Command add_run_layer(CLI::App& parent);
Command add_bench(CLI::App& parent);
// Commands that Python carries out (python/polyhead_perf); they get what stands after their name in `arguments` as it is, which
// are the whole command line.
std::vector<Command> add_perf(CLI::App& parent, std::vector<std::string> arguments);

}  // namespace polyhead::cli
