#include "support/plugin_guard.hpp"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace polyhead::bench {
namespace {

// Read by a signal handler, on whatever thread of the plugin crashed.
std::atomic<const char*> inside{nullptr};

#if defined(__unix__) || defined(__APPLE__)

void write_text(const char* text) {
  for (std::size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = write(STDERR_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= static_cast<std::size_t>(written);
  }
}

// Calls nothing that may not be called in a signal handler.
[[noreturn]] void give_up(const char* doing, const char* how) {
  if (isatty(STDERR_FILENO) != 0) write_text("\r\033[K");  // a progress bar may be there
  write_text("polyhead: plugin ");
  write_text(doing);
  write_text(": ");
  write_text(how);
  write_text("\n");
  _exit(1);
}

const char* describe_signal(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "crashed (segmentation fault)";
    case SIGBUS:
      return "crashed (bus error)";
    case SIGFPE:
      return "crashed (arithmetic exception)";
    case SIGILL:
      return "crashed (illegal instruction)";
    default:
      return "crashed (aborted)";
  }
}

void on_crash(int signal) {
  if (const char* const doing = inside.load()) give_up(doing, describe_signal(signal));
  std::signal(signal, SIG_DFL);  // a fault of ours ends the process as it would without us
  std::raise(signal);
}

void on_exit() {
  if (const char* const doing = inside.load()) give_up(doing, "ended the process by exit()");
}

void install() {
  static char alternative[64 * 1024];  // where the handler runs after a stack overflow
  stack_t stack{};
  stack.ss_sp = alternative;
  stack.ss_size = sizeof alternative;
  sigaltstack(&stack, nullptr);
  struct sigaction action{};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
  std::atexit(on_exit);
}

#else

void install() {}

#endif

}  // namespace

void install_plugin_guard() {
  static std::once_flag once;
  std::call_once(once, install);
}

std::string one_line(const char* text, std::size_t most) {
  std::string line(text, strnlen(text, most));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = c == '\n' || c == '\t' ? ' ' : '?';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

InsidePlugin::InsidePlugin(const std::string& doing) noexcept {
  inside.store(doing.c_str(), std::memory_order_relaxed);
}

InsidePlugin::~InsidePlugin() {
  inside.store(nullptr, std::memory_order_relaxed);
}

}  // namespace polyhead::bench
