#include "default_runtime.hpp"

#include <nanobind/stl/string.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "errors.hpp"
#include "polyhead/version.hpp"

namespace polyhead::python {

namespace nb = nanobind;

namespace {

// Guarded by the GIL. Never destroyed: worker threads must not be joined while the interpreter tears modules down.
Runtime* current = nullptr;

int threads_from_environment() {
  const char* text = std::getenv("POLYHEAD_NUM_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  int threads = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), threads);
  if (error != std::errc{} || *end != '\0' || threads < 1) {
    throw invalid(std::string("POLYHEAD_NUM_THREADS: is \"") + text + "\", expected a whole number of at least 1");
  }
  return threads;
}

const Runtime& shared() {
  if (current == nullptr) {
    RuntimeOptions options;
    options.threads = threads_from_environment();
    current = new Runtime(options);
  }
  return *current;
}

void set_num_threads(int threads) {
  if (threads < 1) throw invalid("threads: is " + std::to_string(threads) + ", expected at least 1");
  if (current != nullptr && current->threads() == threads) return;
  RuntimeOptions options;
  options.threads = threads;
  std::unique_ptr<Runtime> previous(std::exchange(current, new Runtime(options)));
  const nb::gil_scoped_release release;  // ending the previous runtime may wait for its threads
  previous.reset();
}

nb::dict info() {
  const Runtime runtime = shared();
  nb::list isas;
  for (const Isa isa : available_isas()) isas.append(name(isa));
  nb::dict result;
  result["version"] = POLYHEAD_VERSION_STRING;
  result["isa"] = name(runtime.isa());
  result["available_isas"] = isas;
  result["threads"] = runtime.threads();
  result["description"] = runtime.describe();
  return result;
}

}  // namespace

Runtime default_runtime() {
  return shared();
}

void register_runtime(nb::module_& module) {
  module.attr("__version__") = POLYHEAD_VERSION_STRING;
  module.def("set_num_threads", &set_num_threads, nb::arg("threads"),
             "Sets how many threads work at once, the calling one included, for calls and operators made from now on.\n\n"
             "1 starts no thread at all; more than the machine gives are not used. Operators that exist (MultiHeadAttention, "
             "SentenceEncoder, ...) keep theirs.");
  module.def(
      "get_num_threads", [] { return shared().threads(); },
      "How many threads work at once: what set_num_threads said, else POLYHEAD_NUM_THREADS, else as many as this process may "
      "use.");
  module.def("_info", &info);
}

}  // namespace polyhead::python
