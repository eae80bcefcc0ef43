// Around every call into other people's code: what it throws becomes an Error, and when it crashes or ends the process, a line
// on standard error says who did what, and the status is 1.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "polyhead/error.hpp"

namespace polyhead::bench {

// Must be called once before the first guarded call.
void install_plugin_guard();

// Marks the process as being inside a plugin. `doing` completes "plugin ..." and must live as long as the mark. Costs a store,
// since it is inside what is timed.
class InsidePlugin {
 public:
  explicit InsidePlugin(const std::string& doing) noexcept;
  ~InsidePlugin();
  InsidePlugin(const InsidePlugin&) = delete;
  InsidePlugin& operator=(const InsidePlugin&) = delete;
};

// Text of other people's, which may lack its end, for one line of ours: at most `most` characters, nothing but printable ASCII.
std::string one_line(const char* text, std::size_t most);

// Errors: Error(internal) when the function throws.
template <typename Function>
auto call_plugin(const std::string& doing, Function function) {
  try {
    const InsidePlugin mark(doing);
    return function();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::internal, "plugin " + doing + ": threw an exception: " + one_line(error.what(), 1000));
  } catch (...) {
    throw Error(ErrorCode::internal, "plugin " + doing + ": threw something that is not a std::exception");
  }
}

}  // namespace polyhead::bench
