# Precompiled headers, each shared by the targets that use it. Every source pays for its whole header, used or not (GCC
# instantiates the header's templates in every source: 0.6 s for tensor.h, 3.5 s for c10d.h), so most targets use the small
# one.

function(_shardwise_precompile name)
  add_library(shardwise_pch_${name} OBJECT EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/cmake/pch/empty.cpp")
  target_include_directories(shardwise_pch_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(shardwise_pch_${name} PRIVATE shardwise_flags torch::torch_cpu ${ARGN})
  target_precompile_headers(shardwise_pch_${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch/${name}.h")
endfunction()

_shardwise_precompile(tensor)
_shardwise_precompile(c10d)
if(SHARDWISE_TESTS)
  find_package(GTest REQUIRED)
  _shardwise_precompile(test GTest::gtest shardwise_test_flags)
  _shardwise_precompile(test_c10d GTest::gtest shardwise_test_flags)
endif()

# shardwise_precompiled_header(TARGET HEADER): HEADER is tensor, c10d, test, test_c10d, or none.
function(shardwise_precompiled_header target header)
  if(header STREQUAL "none")
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM shardwise_pch_${header})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")  # would be compiled with -fPIE; GCC requires the header's flags
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
