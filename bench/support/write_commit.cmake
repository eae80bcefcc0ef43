# cmake -DSOURCE=... -DOUTPUT=... -P write_commit.cmake: writes the commit that is being built into a source of its own. It is
# written only when it changes, so that a new commit costs one tiny compilation and no rebuilding of the library.
set(commit "")
find_program(git git)
if(git AND EXISTS ${SOURCE}/.git)
  # Without locks: describing must not stand in the way of somebody who commits at the same time.
  set(ENV{GIT_OPTIONAL_LOCKS} 0)
  execute_process(COMMAND ${git} -C ${SOURCE} describe --always --tags --dirty --abbrev=12
    OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT "${commit}" MATCHES "^[A-Za-z0-9._/+-]+$")
  set(commit unknown)
endif()
set(text "// Written by write_commit.cmake.
namespace polyhead::bench {
extern const char* const build_commit;
const char* const build_commit = \"${commit}\";
}  // namespace polyhead::bench
")
set(present "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} present)
endif()
if(NOT "${present}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
