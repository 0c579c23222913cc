# NCCL as c10d has it, where the headers of CUDA and NCCL are (shardwise/comm/nccl, docs/adr/0020). Without them
# no_nccl.cpp stands in for that folder. The plugin alone links libtorch's CUDA half; it is opened at run time.

# The nvidia-* wheels: of this torch where it was installed with them, else of .venv-test's, which is the same.
set(_nvidia "${TORCH_ROOT}/../nvidia")
file(GLOB _whole "${PROJECT_SOURCE_DIR}/.venv-test/lib/python3*/site-packages/nvidia")
if(NOT EXISTS "${_nvidia}/nccl" AND _whole)
  list(GET _whole 0 _nvidia)
endif()
set(SHARDWISE_NVIDIA "${_nvidia}" CACHE PATH "folder of the nvidia-* wheels: headers and libraries of CUDA and NCCL")
find_path(SHARDWISE_CUDA_INCLUDE cusolverDn.h
  HINTS "${SHARDWISE_NVIDIA}/cu13/include" PATHS /usr/local/cuda/include DOC "CUDA's headers")
find_path(SHARDWISE_NCCL_INCLUDE nccl.h
  HINTS "${SHARDWISE_NVIDIA}/nccl/include" PATHS /usr/local/cuda/include DOC "NCCL's header")

# ProcessGroupNCCL's options hold a struct of nccl.h, so both must be those that torch was built with, but for patches.
function(_nccl_reason result)
  set(${result} "" PARENT_SCOPE)
  file(STRINGS "${TORCH_ROOT}/version.py" cuda REGEX "^cuda:.*'[0-9.]+'")
  string(REGEX REPLACE ".*'([0-9]+)[0-9.]*'.*" "\\1" cuda "${cuda}")
  file(GLOB metadata "${TORCH_ROOT}/../torch-*.dist-info/METADATA")
  file(STRINGS "${metadata}" nccl REGEX "^Requires-Dist: nvidia-nccl-")
  string(REGEX REPLACE ".*==([0-9]+\\.[0-9]+).*" "\\1" nccl "${nccl}")
  if(NOT EXISTS "${TORCH_ROOT}/lib/libtorch_cuda.so" OR NOT cuda OR NOT nccl)
    set(${result} "this torch has no CUDA half" PARENT_SCOPE)
  elseif(NOT EXISTS "${SHARDWISE_CUDA_INCLUDE}/cuda.h" OR NOT EXISTS "${SHARDWISE_NCCL_INCLUDE}/nccl.h")
    set(${result} "no headers of CUDA or NCCL" PARENT_SCOPE)
  else()
    file(STRINGS "${SHARDWISE_CUDA_INCLUDE}/cuda.h" cuda_line REGEX "define CUDA_VERSION ")
    file(STRINGS "${SHARDWISE_NCCL_INCLUDE}/nccl.h" nccl_lines REGEX "define NCCL_M(AJOR|INOR) ")
    string(REGEX REPLACE "[^0-9]+([0-9]+)[0-9][0-9][0-9].*" "\\1" cuda_found "${cuda_line}")
    string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2" nccl_found "${nccl_lines}")
    if(NOT "${cuda_found} ${nccl_found}" STREQUAL "${cuda} ${nccl}")
      set(${result} "torch was built with CUDA ${cuda} and NCCL ${nccl}; got headers of ${cuda_found} and ${nccl_found}"
        PARENT_SCOPE)
    endif()
  endif()
endfunction()

_nccl_reason(_nccl_lacks)
if(_nccl_lacks OR SHARDWISE_SANITIZE)  # whose runtime libtorch's CUDA half would be loaded beside
  set(_nccl_found OFF)
else()
  set(_nccl_found ON)
endif()
option(SHARDWISE_NCCL "join ranks with a GPU each by NCCL" ${_nccl_found})

if(SHARDWISE_NCCL)
  if(_nccl_lacks)
    message(FATAL_ERROR "nccl: SHARDWISE_NCCL needs CUDA's and NCCL's headers (PyPI: torch with all that it asks for); "
      "${_nccl_lacks}")
  endif()
  message(STATUS "NCCL: headers in ${SHARDWISE_NCCL_INCLUDE}, for ranks with a GPU each")
  set(SHARDWISE_NCCL_SOURCES comm/nccl/nccl.cpp comm/nccl/store.cpp)
  _torch_target(c10_cuda libc10_cuda.so)
  _torch_target(torch_cuda libtorch_cuda.so)
  add_library(shardwise_nccl MODULE "${PROJECT_SOURCE_DIR}/shardwise/comm/nccl/plugin.cpp")
  target_include_directories(shardwise_nccl PRIVATE "${PROJECT_SOURCE_DIR}")
  target_include_directories(shardwise_nccl SYSTEM PRIVATE "${SHARDWISE_CUDA_INCLUDE}" "${SHARDWISE_NCCL_INCLUDE}")
  target_compile_definitions(shardwise_nccl PRIVATE USE_C10D_NCCL)
  target_link_libraries(shardwise_nccl PRIVATE torch::torch_cuda torch::c10_cuda torch::torch_cpu)
  # DT_RPATH and not DT_RUNPATH: it also holds for the libraries that libtorch_cuda itself needs.
  file(GLOB _nvidia_libraries "${SHARDWISE_NVIDIA}/*/lib")
  set_target_properties(shardwise_nccl PROPERTIES CXX_VISIBILITY_PRESET hidden BUILD_RPATH "${_nvidia_libraries}"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  target_link_options(shardwise_nccl PRIVATE -Wl,--disable-new-dtags -Wl,--no-as-needed)
  set_source_files_properties("${PROJECT_SOURCE_DIR}/shardwise/comm/nccl/nccl.cpp" PROPERTIES
    COMPILE_DEFINITIONS "SHARDWISE_NCCL_PLUGIN=\"$<TARGET_FILE:shardwise_nccl>\"")
else()
  if(NOT _nccl_lacks)
    set(_nccl_lacks "SHARDWISE_NCCL is OFF")
  endif()
  message(STATUS "NCCL: none (${_nccl_lacks}), ranks compute on the CPU")
  set(SHARDWISE_NCCL_SOURCES comm/nccl/no_nccl.cpp)
endif()
