# Compile flags, as targets that only this project's targets link, so that an enclosing project is not affected.

set(SHARDWISE_UNITY_GROUP 24 CACHE STRING "sources that are compiled as one; 0: all of a target")
option(SHARDWISE_UNITY "compile sources in groups: halves a full build; a change rebuilds its group" ON)
set(SHARDWISE_SANITIZE "" CACHE STRING "sanitizers, as in -fsanitize=")
option(SHARDWISE_COVERAGE "count the executed lines and branches of the library, for gcov (make coverage)" OFF)

add_library(shardwise_flags INTERFACE)
# -fPIC everywhere, programs included: GCC uses a precompiled header only with the flags that it was compiled with.
target_compile_options(shardwise_flags INTERFACE -fPIC -Wall -Wextra -Wno-unused-parameter -fno-math-errno)
# Error messages name a source file relative to the source tree, not by its path on the build machine.
target_compile_options(shardwise_flags INTERFACE "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(SHARDWISE_SANITIZE)
  target_compile_options(shardwise_flags INTERFACE -fsanitize=${SHARDWISE_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  # dlopen is the sanitizer's, so the loader does not search the caller's DT_RUNPATH for the chat renderer. It searches the
  # program's DT_RPATH.
  target_link_options(shardwise_flags INTERFACE -fsanitize=${SHARDWISE_SANITIZE} -Wl,--disable-new-dtags)
endif()

if(SHARDWISE_COVERAGE)
  # Only the sources that are reported count. Counters are atomic: gcov derives counts from differences, which lost updates of
  # other threads would falsify.
  target_compile_options(shardwise_flags INTERFACE --coverage -fprofile-abs-path -fprofile-update=atomic
    "-fprofile-filter-files=^${PROJECT_SOURCE_DIR}/(shardwise|python)/")
  # Processes that end by _exit, _Exit or execve write their counts too.
  add_library(shardwise_coverage_exit STATIC "${PROJECT_SOURCE_DIR}/tests/coverage/exit.cpp")
  target_link_libraries(shardwise_flags INTERFACE shardwise_coverage_exit)
  target_link_options(shardwise_flags INTERFACE --coverage -Wl,--wrap=_exit -Wl,--wrap=_Exit -Wl,--wrap=execve)
endif()

# Tests and their drivers compute nothing that is measured, and -O1 compiles faster than -O0: it emits fewer functions.
add_library(shardwise_test_flags INTERFACE)
target_compile_options(shardwise_test_flags INTERFACE -O1)

find_program(CCACHE ccache)
if(CCACHE AND PROJECT_IS_TOP_LEVEL)
  # The precompiled header carries time stamps; without this slack ccache would never hit. Paths below the base
  # directory are seen relative: a second checkout finds what needs no precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
  target_compile_options(shardwise_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# lld links in a tenth of GNU ld's time. mold 1.10 does not take a program's own definition before an archive's, which
# tests of absent parts need.
find_program(SHARDWISE_LINKER NAMES ld.lld DOC "a fast linker")
if(SHARDWISE_LINKER)
  get_filename_component(_linker "${SHARDWISE_LINKER}" EXT)
  string(SUBSTRING "${_linker}" 1 -1 _linker)
  target_link_options(shardwise_flags INTERFACE -fuse-ld=${_linker})
endif()

# Unity builds compile several sources as one, because most of a source's compile time is its headers. Names in unnamed
# namespaces must therefore be unique within a target. The package alone and the fuzzer compile once.
function(shardwise_unity target)
  set(group ${SHARDWISE_UNITY_GROUP})
  if(SHARDWISE_PACKAGE_ONLY OR SHARDWISE_FUZZ)
    set(group 0)  # all
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SHARDWISE_UNITY} UNITY_BUILD_BATCH_SIZE ${group})
endfunction()
