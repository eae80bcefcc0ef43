// Takes memory out of every cache, for timing calls whose operands are cold.
#pragma once

#include <cstddef>

namespace polyhead::bench {

// These bytes, out of the caches of all CPUs, by the instruction for it; on CPUs without one as evict_all.
void evict(const void* memory, std::size_t bytes);

// Everything, by reading twice as much as the largest cache holds (a gigabyte at most): for operands whose memory isn't known.
// What other CPUs hold in caches of their own stays.
void evict_all();

}  // namespace polyhead::bench
