// Facts and actions about oneTBB that concern the whole process.
#pragma once

namespace polyhead::graph {

bool built_with_tbb() noexcept;

// See polyhead::shutdown().
bool shutdown_workers() noexcept;

}  // namespace polyhead::graph
