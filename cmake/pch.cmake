# Precompiled headers, each shared by the targets that use it. Every source pays for its whole header, used or not (GCC
# instantiates the header's templates in every source: 0.6 s for tensor.h, 3.5 s for c10d.h), so most targets use the small
# one.

set(SHARDWISE_TARGETS_WITHOUT_TORCH base io plan text model_config base_test io_test text_test bench_tokenize)
set(SHARDWISE_TARGETS_WITH_C10D comm comm_mpi comm_nccl shm parallel nn test_support comm_test mpi_ranks)

function(_shardwise_precompile name)
  add_library(pch_${name} OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch/empty.cpp")
  target_include_directories(pch_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(pch_${name} PRIVATE torch::torch_cpu ${ARGN})
  target_precompile_headers(pch_${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch/${name}.h")
endfunction()

_shardwise_precompile(tensor)
_shardwise_precompile(c10d)
if(SHARDWISE_TESTS)
  find_package(GTest REQUIRED)
  _shardwise_precompile(test GTest::gtest)
endif()

function(shardwise_precompiled_header target)
  if(target IN_LIST SHARDWISE_TARGETS_WITHOUT_TORCH)
    return()
  elseif(target IN_LIST SHARDWISE_TARGETS_WITH_C10D)
    set(header c10d)
  elseif(target MATCHES "_test$")
    set(header test)
  else()
    set(header tensor)
  endif()
  target_precompile_headers(${target} REUSE_FROM pch_${header})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")  # would be compiled with -fPIE; GCC requires the header's flags
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
