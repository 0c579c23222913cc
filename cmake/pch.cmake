# One precompiled header (ATen's tensor, autograd's functions) shared by every room that links torch_cpu.

add_library(torch_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
target_link_libraries(torch_pch PUBLIC torch::torch_cpu)
target_precompile_headers(torch_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch.h")

set(SHARDWISE_ROOMS_WITHOUT_TORCH base io plan text model_config base_test io_test text_test bench_tokenize)

function(shardwise_precompiled_header target)
  if(NOT target IN_LIST SHARDWISE_ROOMS_WITHOUT_TORCH)
    target_precompile_headers(${target} REUSE_FROM torch_pch)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")  # would be compiled with -fPIE, and gcc takes a header of the same flags only
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
  endif()
endfunction()
