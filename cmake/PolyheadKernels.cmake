# Kernels: every source of simd/hwy is compiled once for each instruction set, with Highway's static dispatch set to that one
# target. Highway opens a target region in the source itself, so no -m flag is given: nothing outside the region can pick up
# wide instructions, and one object file holds one target. Our own table (src/dispatch) chooses at run time.
set(target_sse4 HWY_SSE4)
set(target_avx2 HWY_AVX2)
set(target_avx512 HWY_AVX3)
set(target_avx512_bf16 HWY_AVX3)
set(target_amx HWY_AVX3)
set(target_neon HWY_NEON)
set(target_neon_bf16 HWY_NEON)
set(target_sve HWY_SVE)
set(folder_avx512_bf16 x86/avx512_bf16)
set(folder_neon_bf16 arm/neon_bf16)
set(folder_amx x86)

# polyhead_kernels(ISA FOLDER TARGET): the object library polyhead_simd_<ISA> from simd/<FOLDER>/*.cc; TARGET is Highway's
# constant, empty for plain C++. Sources of simd/x86 and simd/arm have what Highway cannot say in inline assembly, and no -m flag either.
set(POLYHEAD_KERNEL_TARGETS)
function(polyhead_kernels isa folder target)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/simd/${folder}/*.cc)
  foreach(dtype bf16 f16 i8 i4)   # a source's name ends in the data type that it is for
    if(NOT dtype IN_LIST POLYHEAD_DTYPES)
      list(FILTER sources EXCLUDE REGEX "_${dtype}\\.cc$")
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(polyhead_simd_${isa} OBJECT ${sources})
  target_link_libraries(polyhead_simd_${isa} PRIVATE polyhead_flags polyhead_hwy)
  # The compiler's own loop and tail handling is not wanted inside micro-kernels that are unrolled by hand.
  # Sanitized kernels are for finding faults, not for speed, and take a minute each to compile beyond -O1.
  set(optimisation -O3)
  if(POLYHEAD_SANITIZE)
    set(optimisation -O1)
  endif()
  # Aligned functions: else a change in one moves the others' loops across cache lines, and their speed by up to 3 %.
  target_compile_options(polyhead_simd_${isa} PRIVATE
    ${optimisation} -fno-exceptions -fno-math-errno -falign-functions=64)
  if(target)
    target_compile_definitions(polyhead_simd_${isa} PRIVATE HWY_COMPILE_ONLY_STATIC HWY_BASELINE_TARGETS=${target})
  endif()
  set(POLYHEAD_KERNEL_TARGETS ${POLYHEAD_KERNEL_TARGETS} polyhead_simd_${isa} PARENT_SCOPE)
endfunction()

foreach(dtype bf16 f16 i8 i4)
  if(dtype IN_LIST POLYHEAD_DTYPES)
    string(TOUPPER ${dtype} upper)
    target_compile_definitions(polyhead_build INTERFACE POLYHEAD_HAVE_${upper}=1)
  endif()
endforeach()

polyhead_kernels(reference reference "")
foreach(isa IN LISTS POLYHEAD_ISAS)
  if(NOT isa STREQUAL "reference")
    set(folder hwy)
    if(folder_${isa})
      set(folder ${folder_${isa}})
    endif()
    polyhead_kernels(${isa} ${folder} ${target_${isa}})
    string(TOUPPER ${isa} upper)
    target_compile_definitions(polyhead_built_isas INTERFACE POLYHEAD_HAVE_${upper}=1)
  endif()
endforeach()
