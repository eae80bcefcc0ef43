# Dependencies: found on the system, never downloaded behind the user's back. What is missing is named with its Debian package.
#
# Cross compiling: Debian has no arm64 package of the header-only libraries on an amd64 machine, and /usr/include itself must
# not reach a cross compiler (it holds the build machine's C library). So those libraries' folders alone are linked into the
# build folder and taken from there.
function(polyhead_missing what package)
  message(FATAL_ERROR "polyhead needs ${what}: on Debian or Ubuntu, apt-get install ${package}")
endfunction()

if(CMAKE_CROSSCOMPILING)
  set(POLYHEAD_BORROWED_HEADERS ${PROJECT_BINARY_DIR}/borrowed-headers)
  file(MAKE_DIRECTORY ${POLYHEAD_BORROWED_HEADERS})
  foreach(folder hwy nlohmann xsimd)
    if(EXISTS /usr/include/${folder} AND NOT EXISTS ${POLYHEAD_BORROWED_HEADERS}/${folder})
      file(CREATE_LINK /usr/include/${folder} ${POLYHEAD_BORROWED_HEADERS}/${folder} SYMBOLIC)
    endif()
  endforeach()
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  find_path(POLYHEAD_JSON_INCLUDE nlohmann/json.hpp HINTS ${POLYHEAD_BORROWED_HEADERS} NO_CMAKE_FIND_ROOT_PATH)
  if(NOT POLYHEAD_JSON_INCLUDE)
    polyhead_missing("nlohmann_json" nlohmann-json3-dev)
  endif()
  add_library(polyhead_json INTERFACE)
  target_include_directories(polyhead_json SYSTEM INTERFACE ${POLYHEAD_JSON_INCLUDE})
  add_library(nlohmann_json::nlohmann_json ALIAS polyhead_json)
endif()

# Headers only: our static dispatch needs nothing of libhwy, so nothing of Highway reaches our interface or our users.
find_path(POLYHEAD_HWY_INCLUDE hwy/highway.h HINTS ${POLYHEAD_BORROWED_HEADERS} NO_CMAKE_FIND_ROOT_PATH)
if(NOT POLYHEAD_HWY_INCLUDE)
  polyhead_missing("Highway 1.0.3 or later" libhwy-dev)
endif()
add_library(polyhead_hwy INTERFACE)
target_include_directories(polyhead_hwy SYSTEM INTERFACE ${POLYHEAD_HWY_INCLUDE})
# Highway's macros open a target region around every header's namespace, also where only constants or types stand in it.
target_compile_options(polyhead_hwy INTERFACE $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-pragma-clang-attribute>)

set(POLYHEAD_TBB_TARGET)
if(POLYHEAD_TBB)
  find_package(TBB 2021.5 QUIET)
  if(NOT TBB_FOUND)
    polyhead_missing("oneTBB 2021.5 or later (or configure with -DPOLYHEAD_TBB=OFF)" libtbb-dev)
  endif()
  set(POLYHEAD_TBB_TARGET TBB::tbb)
  target_compile_definitions(polyhead_build INTERFACE POLYHEAD_TBB=1)
endif()

if(POLYHEAD_BUILD_TESTS)
  if(CMAKE_CROSSCOMPILING)
    if(NOT EXISTS /usr/src/googletest/CMakeLists.txt)
      polyhead_missing("GoogleTest's sources" googletest)
    endif()
    set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
    add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  else()
    find_package(GTest QUIET)
    if(NOT GTest_FOUND)
      polyhead_missing("GoogleTest (or configure with -DPOLYHEAD_BUILD_TESTS=OFF)" libgtest-dev)
    endif()
  endif()
endif()
