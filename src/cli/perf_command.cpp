// polyhead compare, polyhead report: judging and drawing results is done in Python, where the libraries for it are. Here the
// interpreter and our package are found and started, with the user's arguments as they are.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "command.hpp"

#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif

namespace polyhead::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* package = "polyhead_perf";
#if defined(_WIN32)
constexpr char path_separator = ';';
#else
constexpr char path_separator = ':';
#endif

struct PerfCommand {
  const char* name;
  const char* summary;
};
constexpr PerfCommand perf_commands[] = {
    {"compare", "Say which of two builds, or of two result files, is faster"},
    {"report", "Make one HTML page from a folder of result files"},
};

// Where this program lies. /proc tells on Linux; elsewhere the name it was started by has to do.
fs::path program_folder(const std::string& started_as) {
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) program = fs::weakly_canonical(started_as, error);
  return program.parent_path();
}

// The folder that holds our package: at the same place relative to this program in an installation and in a build tree, which
// has a link there. Error: UsageError, since status 1 of these commands means "slower".
fs::path package_folder(const std::string& started_as) {
  const fs::path folder = (program_folder(started_as) / POLYHEAD_PERF_FOLDER).lexically_normal();
  std::error_code error;
  if (!fs::is_regular_file(folder / package / "__main__.py", error)) {
    throw UsageError(
        fmt::format("the Python package {} is not in {}, where it is installed: install Polyhead again, or run {} "
                    "from a Python that has it (pip install 'polyhead[perf]')",
                    package, folder.string(), fmt::format("python3 -m {}", package)));
  }
  return folder;
}

void set_variable(const char* name, const std::string& value) {
#if defined(_WIN32)
  _putenv_s(name, value.c_str());
#else
  setenv(name, value.c_str(), 1);
#endif
}

// Becomes the interpreter, so that its exit status and the terminal's signals are ours; returns only by an error.
[[noreturn]] void become_python(const std::vector<std::string>& arguments, const std::string& command) {
  const fs::path folder = package_folder(arguments.front());
  const char* const chosen = std::getenv("POLYHEAD_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
  const char* const searched = std::getenv("PYTHONPATH");
  set_variable("PYTHONPATH",
               searched != nullptr && *searched != '\0' ? folder.string() + path_separator + searched : folder.string());
  set_variable("POLYHEAD_PERF_PROGRAM", "polyhead");

  std::vector<std::string> words = {python, "-m", package};
  words.insert(words.end(), std::find(arguments.begin() + 1, arguments.end(), command), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
#if defined(_WIN32)
  const std::intptr_t status = _spawnvp(_P_WAIT, python.c_str(), pointers.data());
  if (status >= 0) std::exit(static_cast<int>(status));
#else
  execvp(python.c_str(), pointers.data());
#endif
  throw UsageError(
      fmt::format("'{}' can't be started: {}; {} is done by Python 3.9 or later: install python3, or set "
                  "POLYHEAD_PYTHON to an interpreter",
                  python, std::strerror(errno), command));
}

}  // namespace

std::vector<Command> add_perf(CLI::App& parent, std::vector<std::string> arguments) {
  std::vector<Command> commands;
  for (const PerfCommand& perf : perf_commands) {
    CLI::App* const command = parent.add_subcommand(perf.name, perf.summary);
    command->prefix_command();   // everything after the name is Python's,
    command->set_help_flag("");  // --help too
    const std::string name = perf.name;
    commands.push_back({command, [arguments, name] { become_python(arguments, name); }});
  }
  return commands;
}

}  // namespace polyhead::cli
