#include "support/result_document.hpp"

#include "support/context.hpp"

namespace polyhead::bench {

nlohmann::ordered_json result_context(const std::string& executable, Isa isa) {
  const GoogleContext google = google_context();
  nlohmann::ordered_json context;
  context["date"] = google.date;
  context["host_name"] = google.host_name;
  context["executable"] = executable;
  context["num_cpus"] = google.num_cpus;
  context["mhz_per_cpu"] = google.mhz_per_cpu;
  context["caches"] = nlohmann::ordered_json::array();
  for (const Cache& cache : google.caches) {
    context["caches"].push_back(
        {{"type", cache.type}, {"level", cache.level}, {"size", cache.bytes}, {"num_sharing", cache.shared_by}});
  }
  context["load_avg"] = google.load_avg;
  context["library_build_type"] = google.library_build_type;
  for (const auto& [key, value] : context_entries(isa)) context[key] = value;
  return context;
}

}  // namespace polyhead::bench
