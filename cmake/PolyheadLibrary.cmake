# libpolyhead, static and (POLYHEAD_SHARED) shared, from the same objects; install rules, CMake package, pkg-config file.
include(GNUInstallDirs)
set(include_directories
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

add_library(polyhead_static STATIC ${objects})
target_link_libraries(polyhead_static PUBLIC Threads::Threads ${POLYHEAD_TBB_TARGET})
target_include_directories(polyhead_static PUBLIC ${include_directories})
target_compile_definitions(polyhead_static INTERFACE POLYHEAD_STATIC)
target_compile_features(polyhead_static INTERFACE cxx_std_17)
set_target_properties(polyhead_static PROPERTIES EXPORT_NAME static LINKER_LANGUAGE CXX)
if(NOT WIN32)
  set_target_properties(polyhead_static PROPERTIES OUTPUT_NAME polyhead)   # there an import library has that name
endif()
add_library(polyhead::static ALIAS polyhead_static)

if(POLYHEAD_SHARED)
  add_library(polyhead SHARED ${objects})
  target_link_libraries(polyhead PRIVATE Threads::Threads ${POLYHEAD_TBB_TARGET})
  target_include_directories(polyhead PUBLIC ${include_directories})
  target_compile_features(polyhead INTERFACE cxx_std_17)
  # Before 1.0 a minor release may break the ABI, so its number is part of the SONAME.
  if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(soversion 0.${PROJECT_VERSION_MINOR})
  else()
    set(soversion ${PROJECT_VERSION_MAJOR})
  endif()
  set_target_properties(polyhead PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${soversion} LINKER_LANGUAGE CXX)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # Hidden visibility doesn't reach the standard library's templates that we instantiate; the version script does.
    set(exports ${PROJECT_SOURCE_DIR}/cmake/polyhead.exports)
    target_link_options(polyhead PRIVATE -Wl,--version-script=${exports})
    set_target_properties(polyhead PROPERTIES LINK_DEPENDS ${exports})
    if(NOT POLYHEAD_SANITIZE)
      target_link_options(polyhead PRIVATE -Wl,--no-undefined)
    endif()
  endif()
  add_library(polyhead::polyhead ALIAS polyhead)
endif()

# For plugins of the benchmarks (polyhead/bench_plugin.h): headers alone, nothing to link.
add_library(polyhead_bench_plugin INTERFACE)
target_include_directories(polyhead_bench_plugin INTERFACE ${include_directories})
set_target_properties(polyhead_bench_plugin PROPERTIES EXPORT_NAME bench_plugin)
add_library(polyhead::bench_plugin ALIAS polyhead_bench_plugin)

# For users of polyhead/score_mod.hpp, who need xsimd beside it; everything else does without.
include(PolyheadScoreMod)
polyhead_find_xsimd(xsimd)
if(xsimd)
  add_library(polyhead_score_mod INTERFACE)
  target_include_directories(polyhead_score_mod INTERFACE ${include_directories})
  target_include_directories(polyhead_score_mod SYSTEM INTERFACE ${xsimd})
  target_compile_features(polyhead_score_mod INTERFACE cxx_std_17)
  add_library(polyhead::score_mod ALIAS polyhead_score_mod)
endif()

if(NOT POLYHEAD_INSTALL)
  return()
endif()

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/polyhead)
if(POLYHEAD_SHARED)
  install(TARGETS polyhead EXPORT polyheadTargets)
  install(EXPORT polyheadTargets NAMESPACE polyhead:: DESTINATION ${package_directory})
endif()
install(TARGETS polyhead_static EXPORT polyheadStaticTargets)
install(EXPORT polyheadStaticTargets NAMESPACE polyhead:: DESTINATION ${package_directory})
install(TARGETS polyhead_bench_plugin EXPORT polyheadPluginTargets)
install(EXPORT polyheadPluginTargets NAMESPACE polyhead:: DESTINATION ${package_directory})
install(DIRECTORY include/polyhead DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/polyhead/version.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/polyhead)

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/polyheadConfig.cmake.in ${PROJECT_BINARY_DIR}/polyheadConfig.cmake
  INSTALL_DESTINATION ${package_directory} PATH_VARS CMAKE_INSTALL_INCLUDEDIR NO_SET_AND_CHECK_MACRO)
# Before 1.0 another minor release is another interface.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/polyheadConfigVersion.cmake COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/polyheadConfig.cmake ${PROJECT_BINARY_DIR}/polyheadConfigVersion.cmake
  cmake/PolyheadScoreMod.cmake DESTINATION ${package_directory})

if(POLYHEAD_TBB)
  set(pkg_config_requires_private tbb)
endif()
file(RELATIVE_PATH pkg_config_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/polyhead.pc.in ${PROJECT_BINARY_DIR}/polyhead.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/polyhead.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
