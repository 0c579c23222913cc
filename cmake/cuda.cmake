# GPU kernels (shardwise/kernels/*_cuda.cu), compiled by nvcc of .venv-cuda (tools/setup cuda): it needs no GPU and no toolkit.
#
# Commands instead of CMake's CUDA language, whose check of the compiler links libraries that only a toolkit has.
set(SHARDWISE_CUDA_ARCHITECTURES sm_90 CACHE STRING
  "what GPU kernels are compiled for: sm_N, a GPU's instructions, or compute_N, PTX for later ones (docs/gpu-kernels.md)")
file(GLOB _nvcc "${PROJECT_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia/cu[0-9]*/bin/nvcc")
if(NOT _nvcc)
  return()
endif()

# No fused multiplication but those that the source writes, so that bits are those of the tests.
set(_flags -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xcompiler=-fPIC "-I${PROJECT_SOURCE_DIR}")
foreach(code ${SHARDWISE_CUDA_ARCHITECTURES})
  if(NOT code MATCHES "^(sm|compute)_([0-9]+)$")
    message(FATAL_ERROR "SHARDWISE_CUDA_ARCHITECTURES must be sm_N or compute_N; got ${code}")
  endif()
  list(APPEND _flags "-gencode=arch=compute_${CMAKE_MATCH_2},code=${code}")
endforeach()

file(GLOB _sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shardwise/kernels/*_cuda.cu)
set(SHARDWISE_CUDA_OBJECTS "")
foreach(source ${_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  list(APPEND SHARDWISE_CUDA_OBJECTS ${object})
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${name}.cu for GPUs"
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda
    COMMAND ${_nvcc} ${_flags} -MD -MF ${object}.d -c ${source} -o ${object} VERBATIM)
endforeach()

# Of programs that a machine without a toolkit runs.
get_filename_component(_cuda ${_nvcc} DIRECTORY)
find_package(Threads REQUIRED)
set(SHARDWISE_CUDA_RUNTIME "${_cuda}/../lib/libcudart_static.a" Threads::Threads rt dl)

# Linking them shows that they need nothing but CUDA's runtime.
set(_kernels ${PROJECT_BINARY_DIR}/cuda/shardwise_cuda_kernels.so)
add_custom_command(OUTPUT ${_kernels} DEPENDS ${SHARDWISE_CUDA_OBJECTS}
  COMMAND ${CMAKE_CXX_COMPILER} -shared -Wl,-z,defs ${SHARDWISE_CUDA_OBJECTS} "${_cuda}/../lib/libcudart.so.13" -o ${_kernels} VERBATIM)
if(SHARDWISE_TESTS AND NOT SHARDWISE_SANITIZE)
  set(_in_all ALL)
endif()
add_custom_target(cuda_kernels ${_in_all} DEPENDS ${_kernels})

# The plugin of --device cuda, if torch has its CUDA half.
if(SHARDWISE_HAS_NCCL)
  file(GLOB _table CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shardwise/cuda/*.cpp)
  set_source_files_properties(${SHARDWISE_CUDA_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(shardwise_cuda MODULE ${PROJECT_SOURCE_DIR}/shardwise/cuda/gpu/plugin.cpp ${_table} ${SHARDWISE_CUDA_OBJECTS})
  add_dependencies(shardwise_cuda cuda_kernels)
  string(REPLACE ";" " " _architectures "${SHARDWISE_CUDA_ARCHITECTURES}")
  target_compile_definitions(shardwise_cuda PRIVATE "SHARDWISE_CUDA_ARCHITECTURES=\"${_architectures}\"")
  target_include_directories(shardwise_cuda PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  shardwise_cuda_module(shardwise_cuda)
  shardwise_unity(shardwise_cuda)
  target_link_options(shardwise_cuda PRIVATE -Wl,-z,defs)
  target_link_libraries(shardwise_cuda PRIVATE "${_cuda}/../lib/libcudart.so.13")
endif()
