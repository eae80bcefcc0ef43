// Ctrl-C during measurements: the first one ends them in order, the second one ends the process.
#pragma once

namespace polyhead::cli {

// While it lives, SIGINT and SIGTERM set a flag. A signal that the parent has made ignored stays so.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool requested() noexcept;
  // Ends the process by the signal that was caught, so that the shell sees what happened.
  [[noreturn]] static void give_way();

 private:
  void (*before_[2])(int);
};

}  // namespace polyhead::cli
