/* A plugin whose library lacks what it calls. */
#include "polyhead/bench_plugin.h"

const polyhead_bench_engine* polyhead_bench_test_symbol_that_is_nowhere(void);

const polyhead_bench_engine* polyhead_bench_plugin(int32_t index) {
  return index == 0 ? polyhead_bench_test_symbol_that_is_nowhere() : 0;
}
