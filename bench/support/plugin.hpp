// Engines of other people's shared libraries (polyhead/bench_plugin.h).
#pragma once

#include <string>
#include <vector>

#include "polyhead/bench_plugin.h"

namespace polyhead::bench {

struct PluginEngine {
  std::string name;
  std::string description;  // empty when it has none
  std::string library;      // its path as it was given
  const polyhead_bench_engine* functions = nullptr;
};

// Loads these libraries, which stay loaded until the process ends: their threads may outlive any call. A name without a slash
// is taken from the current folder when it lies there, and looked for as the system does otherwise. Errors: Error that names
// the library and what is wrong: it cannot be loaded, exports no polyhead_bench_plugin, has another version of the interface,
// an engine without a usable name or function, or one with a name that is taken. A library that crashes while it is loaded ends
// the process with a message and status 1, as any crash inside a plugin does.
std::vector<PluginEngine> load_plugins(const std::vector<std::string>& libraries);

}  // namespace polyhead::bench
