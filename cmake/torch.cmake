# Imported targets for the PyTorch wheel's C++ library.
#
# find_package(Torch) is not used: with the default wheel it fails without a CUDA toolkit. Only libc10 and libtorch_cpu
# are linked; libtorch.so would load the CUDA libraries too.

if(SKBUILD)  # built by pip, whose Python locates torch
  find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(COMMAND "${Python3_EXECUTABLE}" -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
else()
  set(SHARDWISE_VENV "${PROJECT_SOURCE_DIR}/.venv" CACHE PATH "virtual environment that contains torch")
  file(GLOB _torch_roots "${SHARDWISE_VENV}/lib/python3*/site-packages/torch")
  if(NOT _torch_roots)
    message(FATAL_ERROR "torch: not found in ${SHARDWISE_VENV}; run tools/setup")
  endif()
  list(GET _torch_roots 0 TORCH_ROOT)
endif()

file(READ "${TORCH_ROOT}/version.py" _torch_version)
if(NOT _torch_version MATCHES "__version__ = '2\\.11\\.")
  message(FATAL_ERROR "torch: 2.11 is needed (c10d's C++ interface changes between minors); got ${TORCH_ROOT}")
endif()

function(_torch_target name library)
  add_library(torch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION "${TORCH_ROOT}/lib/${library}")
  target_include_directories(torch::${name} SYSTEM INTERFACE
    "${TORCH_ROOT}/include" "${TORCH_ROOT}/include/torch/csrc/api/include")
  target_compile_definitions(torch::${name} INTERFACE USE_DISTRIBUTED FMT_HEADER_ONLY=1)
endfunction()

_torch_target(c10 libc10.so)
_torch_target(torch_cpu libtorch_cpu.so)
_torch_target(gomp libgomp.so.1)
target_link_libraries(torch::torch_cpu INTERFACE torch::c10)
# libtorch_cpu finds the CUDA runtime and CUPTI by its own RPATH, which the linker does not follow.
target_link_options(torch::torch_cpu INTERFACE -Wl,--allow-shlib-undefined)
