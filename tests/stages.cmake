# Stages: whole builds with tests of their own, each a test here so that one summary covers everything (scripts/test).
#   POLYHEAD_TEST_STAGES = OFF: none    quick: what every run has    full: everything
set(POLYHEAD_TEST_STAGES "OFF" CACHE STRING "Sub-builds to register as tests: OFF, quick or full")
set_property(CACHE POLYHEAD_TEST_STAGES PROPERTY STRINGS OFF quick full)

function(polyhead_stage name)
  add_test(NAME stage_${name} COMMAND ${PROJECT_SOURCE_DIR}/scripts/lib/run-stage ${name})
  # They fill the machine themselves, so each runs alone. What ends them first is the limits of the tests inside; emulated ones
  # take hours on two cores.
  set_tests_properties(stage_${name} PROPERTIES LABELS stage RUN_SERIAL ON TIMEOUT 21600)
endfunction()

if(POLYHEAD_TEST_STAGES STREQUAL "quick")
  set(stages python perf sanitize_smoke arm64_smoke)
elseif(POLYHEAD_TEST_STAGES STREQUAL "full")
  set(stages python python_with_torch perf report_in_browser clang debug asan_ubsan tsan without_tbb arm64_all sve128 sve256 avx512_emulated old_cpus single_isas long_properties)
  add_test(NAME check_format COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-format)
  set_tests_properties(check_format PROPERTIES LABELS checks SKIP_RETURN_CODE 77)
elseif(POLYHEAD_TEST_STAGES)
  message(FATAL_ERROR "POLYHEAD_TEST_STAGES is \"${POLYHEAD_TEST_STAGES}\": expected OFF, quick or full")
else()
  set(stages)
endif()
foreach(stage IN LISTS stages)
  polyhead_stage(${stage})
endforeach()
