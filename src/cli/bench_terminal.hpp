// Where the output goes, and a progress bar for people who watch.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace polyhead::cli {

// Columns of the terminal that the stream writes to; 0 when it is none.
int terminal_width(std::FILE* stream);

// A line on standard error that draws itself anew and leaves nothing behind; silent where that is no terminal.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // share: of everything, 0 to 1. Draws ten times a second at most.
  void show(double share, const std::string& what);
  // To be called before anything else is written to the terminal.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace polyhead::cli
