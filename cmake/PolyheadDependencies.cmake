# Dependencies: the system's packages first.
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)

find_path(POLYHEAD_HWY_INCLUDE hwy/highway.h REQUIRED)
add_library(polyhead_hwy INTERFACE)
target_include_directories(polyhead_hwy SYSTEM INTERFACE ${POLYHEAD_HWY_INCLUDE})

set(POLYHEAD_TBB_TARGET)
if(POLYHEAD_TBB)
  find_package(TBB REQUIRED)
  set(POLYHEAD_TBB_TARGET TBB::tbb)
  target_compile_definitions(polyhead_build INTERFACE POLYHEAD_TBB=1)
endif()
