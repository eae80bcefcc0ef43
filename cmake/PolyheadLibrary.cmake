# libpolyhead, shared and static, from the same objects.
add_library(polyhead_static STATIC ${objects})
target_link_libraries(polyhead_static PUBLIC Threads::Threads ${POLYHEAD_TBB_TARGET})
target_include_directories(polyhead_static PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
target_compile_definitions(polyhead_static INTERFACE POLYHEAD_STATIC)
add_library(polyhead::static ALIAS polyhead_static)

add_library(polyhead SHARED ${objects})
target_link_libraries(polyhead PRIVATE Threads::Threads ${POLYHEAD_TBB_TARGET})
target_include_directories(polyhead PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
set_target_properties(polyhead PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
add_library(polyhead::polyhead ALIAS polyhead)
