# Imported targets torch::c10, torch::torch_cpu and torch::gomp for PyTorch's C++ library. Also installed: the package that
# find_package(shardwise) loads includes it.
#
# torch is the first of: SHARDWISE_TORCH_ROOT (a directory with lib/libtorch_cpu.so and include/, of a wheel or a libtorch
# archive); SHARDWISE_VENV (a Python environment that contains torch); the torch of `python3` in PATH.
#
# find_package(Torch) is not used: with the default wheel it fails without a CUDA toolkit. Only libc10 and libtorch_cpu
# are linked; libtorch.so would load the CUDA libraries too.

set(SHARDWISE_TORCH_ROOT "" CACHE PATH "directory of torch: contains lib/libtorch_cpu.so and include/")
set(SHARDWISE_VENV "" CACHE PATH "Python environment that contains torch")

function(_torch_of_python result python)
  execute_process(COMMAND "${python}" -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

function(_find_torch result)
  if(SHARDWISE_TORCH_ROOT)
    set(root "${SHARDWISE_TORCH_ROOT}")
  elseif(SHARDWISE_VENV)
    file(GLOB root "${SHARDWISE_VENV}/lib/python3*/site-packages/torch")
  elseif(Python3_EXECUTABLE)  # pip's, which locates torch
    _torch_of_python(root "${Python3_EXECUTABLE}")
  else()
    _torch_of_python(root python3)
  endif()
  if(NOT EXISTS "${root}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "torch: lib/libtorch_cpu.so must be in SHARDWISE_TORCH_ROOT, in SHARDWISE_VENV's torch, or in the "
      "torch of python3; got SHARDWISE_TORCH_ROOT='${SHARDWISE_TORCH_ROOT}', SHARDWISE_VENV='${SHARDWISE_VENV}'; in a "
      "checkout, run tools/setup")
  endif()
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

# c10d's C++ interface changes between minor versions.
function(_check_torch_version root)
  file(STRINGS "${root}/include/torch/headeronly/version.h" lines REGEX "define TORCH_VERSION_M(AJOR|INOR) ")
  if(NOT lines MATCHES "MAJOR 2;.*MINOR 11$")
    message(FATAL_ERROR "torch: version must be 2.11; got ${lines} in ${root}")
  endif()
endfunction()

function(_torch_target name library)
  if(TARGET torch::${name})
    return()
  endif()
  add_library(torch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION "${TORCH_ROOT}/lib/${library}")
  target_include_directories(torch::${name} SYSTEM INTERFACE
    "${TORCH_ROOT}/include" "${TORCH_ROOT}/include/torch/csrc/api/include")
  target_compile_definitions(torch::${name} INTERFACE USE_DISTRIBUTED FMT_HEADER_ONLY=1)
endfunction()

_find_torch(TORCH_ROOT)
_check_torch_version("${TORCH_ROOT}")
file(GLOB _gomp "${TORCH_ROOT}/lib/libgomp*.so.1*")
list(GET _gomp 0 _gomp)
get_filename_component(TORCH_GOMP "${_gomp}" NAME)
_torch_target(c10 libc10.so)
_torch_target(torch_cpu libtorch_cpu.so)
_torch_target(gomp "${TORCH_GOMP}")
target_link_libraries(torch::torch_cpu INTERFACE torch::c10)
# libtorch_cpu finds the CUDA runtime and CUPTI by its own RPATH, which the linker does not follow.
target_link_options(torch::torch_cpu INTERFACE -Wl,--allow-shlib-undefined)
