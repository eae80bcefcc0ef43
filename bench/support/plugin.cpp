#include "support/plugin.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "dispatch/select_isa.hpp"
#include "polyhead/error.hpp"
#include "polyhead/runtime.hpp"
#include "support/plugin_guard.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace polyhead::bench {
namespace {

constexpr const char* entry_name = "polyhead_bench_plugin";
constexpr std::size_t longest_name = 40;
constexpr int most_engines = 64;
using Entry = const polyhead_bench_engine* (*)(std::int32_t);

[[noreturn]] void refuse(const std::string& library, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "plugin " + library + ": " + why);
}

#if defined(__unix__) || defined(__APPLE__)

Entry load(const std::string& library) {
  // Without a slash dlopen looks in the system's folders only.
  const bool here = library.find('/') == std::string::npos && std::ifstream(library).good();
  const std::string path = here ? "./" + library : library;
  void* const handle =
      call_plugin(library + ", while it is loaded", [&] { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); });
  if (handle == nullptr) refuse(library, std::string("cannot be loaded: ") + dlerror());
  void* const entry = dlsym(handle, entry_name);
  if (entry == nullptr) {
    refuse(library, std::string("exports no function ") + entry_name +
                        "; it has to be declared by polyhead/bench_plugin.h, which makes it visible and extern \"C\"");
  }
  return reinterpret_cast<Entry>(entry);
}

#else

Entry load(const std::string& library) {
  refuse(library, "this system's shared libraries are not served");
}

#endif

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::strchr("._-+", c) != nullptr;
}

std::string checked_name(const std::string& library, const std::string& which, const char* name) {
  if (name == nullptr) refuse(library, which + " has no name");
  const std::string text(name, strnlen(name, longest_name + 1));
  if (text.empty() || text.size() > longest_name || !std::all_of(text.begin(), text.end(), is_name_character)) {
    refuse(library, which + " has the name '" + one_line(text.c_str(), text.size()) +
                        "'; expected 1 to 40 letters, digits, '.', '_', '-' or '+'");
  }
  for (const Isa isa : dispatch::all_isas()) {
    if (text == polyhead::name(isa)) refuse(library, which + " has the name '" + text + "', an instruction set of Polyhead's");
  }
  return text;
}

PluginEngine checked(const std::string& library, int index, const polyhead_bench_engine* functions) {
  const std::string which = "engine " + std::to_string(index);
  // The first two fields are where they are in every version.
  if (functions->version != POLYHEAD_BENCH_PLUGIN_VERSION) {
    refuse(library, which + " is made for version " + std::to_string(functions->version) +
                        " of the interface; this Polyhead serves version " + std::to_string(POLYHEAD_BENCH_PLUGIN_VERSION));
  }
  if (functions->struct_size < sizeof(polyhead_bench_engine)) {
    refuse(library, which + " has struct_size " + std::to_string(functions->struct_size) +
                        "; expected sizeof(polyhead_bench_engine), " + std::to_string(sizeof(polyhead_bench_engine)));
  }
  PluginEngine engine;
  engine.name = checked_name(library, which, functions->name);
  if (functions->description != nullptr) engine.description = one_line(functions->description, 1000);
  engine.library = library;
  engine.functions = functions;
  if (functions->run == nullptr) refuse(library, "engine '" + engine.name + "' has no function run");
  return engine;
}

}  // namespace

std::vector<PluginEngine> load_plugins(const std::vector<std::string>& libraries) {
  if (!libraries.empty()) install_plugin_guard();
  std::vector<PluginEngine> engines;
  for (const std::string& library : libraries) {
    const Entry entry = load(library);
    const std::string doing = library + ", while its engines are listed";
    for (int index = 0;; ++index) {
      const polyhead_bench_engine* const functions = call_plugin(doing, [&] { return entry(index); });
      if (functions == nullptr && index == 0) refuse(library, "has no engine");
      if (functions == nullptr) break;
      if (index == most_engines) refuse(library, "has more than 64 engines, or does not end their list with NULL");
      PluginEngine engine = [&] {
        const InsidePlugin mark(doing);  // the pointers may be wild
        return checked(library, index, functions);
      }();
      for (const PluginEngine& other : engines) {
        if (other.name == engine.name) {
          refuse(library, "engine '" + engine.name + "' is there already" +
                              (other.library == library ? std::string() : ", from " + other.library));
        }
      }
      engines.push_back(std::move(engine));
    }
  }
  return engines;
}

}  // namespace polyhead::bench
