// polyhead: information, one-off runs on files, and benchmarks.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "polyhead/error.hpp"
#include "polyhead/version.hpp"

namespace {

using namespace polyhead::cli;

int fail(ExitCode code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "polyhead: {}\n", message);
  return code;
}

// Output that nobody could read is a failure: a full disk behind `> results.json`, say.
int finish() {
  std::cout.flush();  // CLI11's help goes there
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
    return fail(exit_failure, "standard output cannot be written");
  }
  return exit_success;
}

// The most specific subcommand that was named, for the hint after a usage error.
std::string parsed_command(const CLI::App& app) {
  std::string path = "polyhead";
  const CLI::App* current = &app;
  while (!current->get_subcommands().empty()) {
    current = current->get_subcommands().front();
    path += " " + current->get_name();
  }
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Multi-head attention on CPUs", "polyhead"};
  app.set_version_flag("--version", "polyhead " POLYHEAD_VERSION_STRING);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  polyhead info                                  what this machine has and which kernels serve it\n"
      "  polyhead bench bert-512 --threads 1            time a named workload, checked against float64 first\n"
      "  polyhead compare --baseline old/polyhead-bench --candidate new/polyhead-bench\n"
      "  polyhead report bench/results                  one HTML page from a folder of results\n"
      "  polyhead run attention --query q.npy --key k.npy --value v.npy --out o.npy --causal top-left\n"
      "  polyhead run layer --weights layer.safetensors --heads 12 --input x.npy --out y.npy\n"
      "\nExit status: 0 done, 1 it failed (compare: slower), 2 the command line was wrong (compare: could not tell). Errors "
      "are one line on standard error.");

  std::vector<Command> commands;
  commands.push_back(add_info(app));
  CLI::App* const run = app.add_subcommand("run", "Compute attention, or a layer, on .npy files");
  run->require_subcommand(1);
  commands.push_back(add_run_attention(*run));
  commands.push_back(add_run_layer(*run));
  commands.push_back(add_bench(app));
  for (Command& command : add_perf(app, {argv, argv + argc})) commands.push_back(std::move(command));

  try {
    app.parse(argc, argv);
    for (const Command& command : commands) {
      if (command.app->parsed()) command.action();
    }
    return finish();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      return finish();
    }
    return fail(exit_usage, fmt::format("{} (see {} --help)", error.what(), parsed_command(app)));
  } catch (const UsageError& error) {
    return fail(exit_usage, fmt::format("{} (see {} --help)", error.what(), parsed_command(app)));
  } catch (const std::bad_alloc&) {
    return fail(exit_failure, "out of memory");
  } catch (const std::exception& error) {
    return fail(exit_failure, error.what());
  }
}
