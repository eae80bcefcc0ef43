// Errors: one exception type. Every public entry validates its arguments completely before it does any work.
#pragma once

#include <stdexcept>
#include <string>

#include "polyhead/export.hpp"

namespace polyhead {

// Values are part of the C ABI (polyhead_status): append, never renumber.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,  // a shape, stride, dtype or option is wrong; the message names the argument, what it was and should be
  unsupported = 2,       // a legal request that this build or CPU does not serve
  out_of_memory = 3,
  cancelled = 4,  // the caller's cancellation flag was seen; outputs are unspecified, nothing else changed
  io_error = 5,   // a file could not be read, or is not what its format promises
  internal = 6,   // a fault of ours
};

// Thrown by the C++ interface; the C interface turns it into a status and a thread-local message.
class POLYHEAD_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace polyhead
