# Score modifications (polyhead/score_mod.hpp). In Polyhead's own build and, installed, in its users':
#
#   polyhead_add_score_mod(target source [ISAS isa...])
#
# compiles a source that holds POLYHEAD_SCORE_MOD once plainly and once for each instruction set, of sse4.2, avx2 and avx512 on
# x86-64 (all by default; on other processors none, and neon64 may be named: arm64 has it anyway), and adds all of it to the
# target. The run's instruction set decides which one is called. Needs xsimd, as the target polyhead::score_mod does, which a
# program that uses the header in sources of its own links.
#
# Objects for a wider instruction set must not bring functions along that others might call: with GCC they have no weak symbols
# (-fno-weak). Clang has no such flag: a source compiled by it should not use the standard library's templates beyond what is
# inlined.

# polyhead_find_xsimd(RESULT): the folder of xsimd's headers, or an empty string.
function(polyhead_find_xsimd result)
  set(folders)
  if(NOT CMAKE_CROSSCOMPILING)
    find_package(xsimd QUIET)
    if(TARGET xsimd)
      get_target_property(folders xsimd INTERFACE_INCLUDE_DIRECTORIES)
    endif()
  endif()
  find_path(POLYHEAD_XSIMD_INCLUDE xsimd/xsimd.hpp HINTS ${folders} ${POLYHEAD_BORROWED_HEADERS} NO_CMAKE_FIND_ROOT_PATH)
  if(POLYHEAD_XSIMD_INCLUDE)
    set(${result} ${POLYHEAD_XSIMD_INCLUDE} PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

function(polyhead_add_score_mod target source)
  cmake_parse_arguments(PARSE_ARGV 2 argument "" "" ISAS)
  if(NOT TARGET polyhead::score_mod)
    message(FATAL_ERROR "polyhead_add_score_mod needs xsimd: on Debian or Ubuntu, apt-get install libxsimd-dev")
  endif()
  set(known neon64)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(known sse4.2 avx2 avx512)
  endif()
  if(NOT DEFINED argument_ISAS)
    set(argument_ISAS ${known})
  endif()
  set(name_sse4.2 sse4)
  set(flags_sse4.2 -msse4.2)
  set(name_avx2 avx2)
  set(flags_avx2 -mavx2 -mfma)
  set(name_avx512 avx512)
  set(flags_avx512 -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma)

  get_filename_component(source ${source} ABSOLUTE)
  get_filename_component(stem ${source} NAME_WE)
  set(built)
  foreach(isa IN LISTS argument_ISAS)
    if(NOT isa IN_LIST known)
      string(REPLACE ";" " " known "${known}")
      message(FATAL_ERROR "polyhead_add_score_mod: ISAS has \"${isa}\"; expected some of: ${known}")
    endif()
    if(NOT isa STREQUAL "neon64")
      string(TOUPPER ${name_${isa}} upper)
      list(APPEND built POLYHEAD_SCORE_MOD_${upper})
      polyhead_score_mod_objects(${target} ${source} ${target}_${stem}_${name_${isa}} "${flags_${isa}}"
        POLYHEAD_SCORE_MOD_ISA=${name_${isa}})
    endif()
  endforeach()
  # The plain function, and the table of all.
  polyhead_score_mod_objects(${target} ${source} ${target}_${stem}_table "" "${built}")
  target_link_libraries(${target} PRIVATE polyhead::score_mod)
endfunction()

# polyhead_score_mod_objects(TARGET SOURCE NAME FLAGS DEFINITIONS): one object of it, compiled as TARGET is and with FLAGS.
function(polyhead_score_mod_objects target source name flags definitions)
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE polyhead::score_mod)
  target_compile_definitions(${name} PRIVATE ${definitions} $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
  target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
  # GCC 12 takes what its own AVX-512 intrinsics leave undefined on purpose for a mistake.
  target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS> $<$<NOT:$<CONFIG:Debug>>:-O3> ${flags}
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(flags)
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-weak>)
  endif()
  foreach(property POSITION_INDEPENDENT_CODE CXX_STANDARD CXX_VISIBILITY_PRESET)
    get_target_property(value ${target} ${property})
    if(value)
      set_target_properties(${name} PROPERTIES ${property} ${value})
    endif()
  endforeach()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
