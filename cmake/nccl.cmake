# c10d's ProcessGroupNCCL, if the headers of CUDA and NCCL are installed (shardwise/comm/nccl, docs/adr/0020). Without them
# no_nccl.cpp replaces that directory. Only the plugin links libtorch's CUDA libraries; it is loaded at run time.

# Returns the directory of the nvidia-* wheels: those installed with this torch, else those of .venv-test's torch of the same
# version. Other directories are not searched: headers from a toolkit would hide that a wheel is missing.
function(_nvidia_wheels result)
  file(GLOB directories "${TORCH_ROOT}/../nvidia" "${PROJECT_SOURCE_DIR}/.venv-test/lib/python3*/site-packages/nvidia")
  foreach(directory ${directories})
    file(GLOB headers "${directory}/cu[0-9]*/include/cuda_runtime.h" "${directory}/nccl/include/nccl.h")
    list(LENGTH headers count)
    if(count EQUAL 2)
      set(${result} "${directory}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

# ProcessGroupNCCL's options contain a struct of nccl.h, so CUDA and NCCL must be the versions that torch was built with, up
# to the patch level.
function(_nccl_why_not result cuda_include nccl_include)
  set(${result} "" PARENT_SCOPE)
  file(GLOB metadata "${TORCH_ROOT}/../torch-*.dist-info/METADATA")
  if(metadata AND EXISTS "${TORCH_ROOT}/version.py")  # a wheel; a libtorch archive has neither
    file(STRINGS "${TORCH_ROOT}/version.py" cuda REGEX "^cuda:.*'[0-9.]+'")
    string(REGEX REPLACE ".*'([0-9]+)[0-9.]*'.*" "\\1" cuda "${cuda}")
    file(STRINGS "${metadata}" nccl REGEX "^Requires-Dist: nvidia-nccl-")
    string(REGEX REPLACE ".*==([0-9]+\\.[0-9]+).*" "\\1" nccl "${nccl}")
  endif()
  if(SHARDWISE_SANITIZE)
    set(${result} "a sanitizer's runtime cannot be combined with libtorch's CUDA libraries" PARENT_SCOPE)
  elseif(NOT EXISTS "${TORCH_ROOT}/lib/libtorch_cuda.so" OR NOT cuda OR NOT nccl)
    set(${result} "torch is not a wheel built with CUDA" PARENT_SCOPE)
  elseif(NOT cuda_include OR NOT nccl_include)
    set(${result} "the wheels with headers of CUDA and NCCL are not installed (tools/setup test)" PARENT_SCOPE)
  elseif(NOT EXISTS "${cuda_include}/crt/host_config.h" OR NOT EXISTS "${cuda_include}/nv/target")
    set(${result} "the CUDA wheels lack crt/ and nv/ (PyPI: cuda-toolkit[cccl,crt]; tools/setup test)" PARENT_SCOPE)
  else()
    file(STRINGS "${cuda_include}/cuda.h" cuda_line REGEX "define CUDA_VERSION ")
    file(STRINGS "${nccl_include}/nccl.h" nccl_lines REGEX "define NCCL_M(AJOR|INOR) ")
    string(REGEX REPLACE "[^0-9]+([0-9]+)[0-9][0-9][0-9].*" "\\1" cuda_found "${cuda_line}")
    string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2" nccl_found "${nccl_lines}")
    if(NOT "${cuda_found} ${nccl_found}" STREQUAL "${cuda} ${nccl}")
      set(${result} "torch was built with CUDA ${cuda} and NCCL ${nccl}; got headers of ${cuda_found} and ${nccl_found}"
        PARENT_SCOPE)
    endif()
  endif()
endfunction()

_nvidia_wheels(_nvidia)
set(_cuda_include "")
set(_nccl_include "")
if(_nvidia)
  file(GLOB _cuda_include "${_nvidia}/cu[0-9]*/include")
  set(_nccl_include "${_nvidia}/nccl/include")
endif()
_nccl_why_not(_nccl_lacks "${_cuda_include}" "${_nccl_include}")
shardwise_optional(NCCL "${_nccl_lacks}" "GPU ranks through NCCL")

if(SHARDWISE_HAS_NCCL)
  message(STATUS "NCCL: headers in ${_nvidia}, for GPU ranks")
  _torch_target(c10_cuda libc10_cuda.so)
  _torch_target(torch_cuda libtorch_cuda.so)
  file(GLOB _nvidia_libraries "${_nvidia}/*/lib")

  # A module of the program that links libtorch's CUDA half.
  function(shardwise_cuda_module target)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_include_directories(${target} SYSTEM PRIVATE "${_cuda_include}")
    target_link_libraries(${target} PRIVATE shardwise_flags torch::torch_cuda torch::c10_cuda torch::torch_cpu)
    # DT_RPATH instead of DT_RUNPATH: it also applies to the libraries that libtorch_cuda itself needs.
    set_target_properties(${target} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
      BUILD_RPATH "${_nvidia_libraries}" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags -Wl,--no-as-needed)
  endfunction()

  add_library(shardwise_nccl MODULE "${PROJECT_SOURCE_DIR}/shardwise/comm/nccl/plugin.cpp")
  target_include_directories(shardwise_nccl SYSTEM PRIVATE "${_nccl_include}")
  target_compile_definitions(shardwise_nccl PRIVATE USE_C10D_NCCL)
  shardwise_cuda_module(shardwise_nccl)
else()
  message(STATUS "NCCL: none (${SHARDWISE_LACKS_NCCL}), ranks compute on the CPU")
endif()
