#include "bench_terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

namespace polyhead::cli {
namespace {

constexpr int usual_width = 80;  // of terminals that don't tell theirs
constexpr int bar_cells = 20;

std::string readable_seconds(double seconds) {
  const int whole = static_cast<int>(std::min(seconds, 359999.0) + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

int terminal_width(std::FILE* stream) {
#if defined(__unix__) || defined(__APPLE__)
  const int descriptor = fileno(stream);
  if (isatty(descriptor) == 0) return 0;
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return usual_width;
#else
  (void)stream;
  return 0;
#endif
}

ProgressBar::ProgressBar() : start_(Clock::now()), last_(start_) {
  const char* const kind = std::getenv("TERM");
  enabled_ = terminal_width(stderr) > 0 && kind != nullptr && std::strcmp(kind, "dumb") != 0;
}

void ProgressBar::show(double share, const std::string& what) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  share = std::clamp(share, 0.0, 1.0);
  const int filled = static_cast<int>(share * bar_cells);
  std::string line = fmt::format("[{:#<{}}{:.<{}}] {:3.0f} %", "", filled, "", bar_cells - filled, share * 100);
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  if (share > 0.02 && elapsed > 1) line += fmt::format(", {} left", readable_seconds(elapsed * (1 - share) / share));
  line += "  " + what;
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(terminal_width(stderr) - 1, 1))));  // it must not wrap
  fmt::print(stderr, "\r{}\033[K", line);
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace polyhead::cli
