#include "bench_interrupt.hpp"

#include <csignal>
#include <cstdlib>

namespace polyhead::cli {
namespace {

constexpr int watched[] = {SIGINT, SIGTERM};
volatile std::sig_atomic_t caught = 0;

void on_signal(int signal) {
  if (caught != 0) std::signal(signal, SIG_DFL);
  if (caught != 0) std::raise(signal);
  caught = signal;
  std::signal(signal, on_signal);  // some systems forget it
}

}  // namespace

InterruptWatch::InterruptWatch() {
  caught = 0;
  for (int i = 0; i < 2; ++i) {
    before_[i] = std::signal(watched[i], on_signal);
    if (before_[i] == SIG_IGN) std::signal(watched[i], SIG_IGN);
  }
}

InterruptWatch::~InterruptWatch() {
  for (int i = 0; i < 2; ++i) std::signal(watched[i], before_[i]);
}

bool InterruptWatch::requested() noexcept {
  return caught != 0;
}

void InterruptWatch::give_way() {
  const int signal = caught;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  std::abort();
}

}  // namespace polyhead::cli
