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
# nvcc_object(SOURCE OBJECT)
function(nvcc_object source object)
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(directory ${object} DIRECTORY)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${name}.cu for GPUs"
    COMMAND ${CMAKE_COMMAND} -E make_directory ${directory}
    COMMAND ${_nvcc} ${_flags} -MD -MF ${object}.d -c ${source} -o ${object} VERBATIM)
endfunction()

set(SHARDWISE_CUDA_OBJECTS "")
foreach(source ${_sources})
  get_filename_component(name ${source} NAME_WE)
  list(APPEND SHARDWISE_CUDA_OBJECTS ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  nvcc_object(${source} ${PROJECT_BINARY_DIR}/cuda/${name}.o)
endforeach()
# Of tests, apart from the kernels that tools/kernel_report reads.
set(SHARDWISE_FAULTS_OBJECT ${PROJECT_BINARY_DIR}/cuda_faults/faults.o)
nvcc_object(${PROJECT_SOURCE_DIR}/tests/emulator/faults.cu ${SHARDWISE_FAULTS_OBJECT})

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
add_custom_target(cuda_faults DEPENDS ${SHARDWISE_FAULTS_OBJECT})

# The plugin of --device cuda, if torch has its CUDA half.
if(SHARDWISE_HAS_NCCL)
  file(GLOB _table CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shardwise/cuda/*.cpp)
  set_source_files_properties(${SHARDWISE_CUDA_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  string(REPLACE ";" " " _architectures "${SHARDWISE_CUDA_ARCHITECTURES}")
  # shardwise_cuda_plugin(TARGET sources of its collectives)
  function(shardwise_cuda_plugin target)
    add_library(${target} MODULE ${PROJECT_SOURCE_DIR}/shardwise/cuda/gpu/plugin.cpp ${_table} ${SHARDWISE_CUDA_OBJECTS} ${ARGN})
    add_dependencies(${target} cuda_kernels)
    target_compile_definitions(${target} PRIVATE "SHARDWISE_CUDA_ARCHITECTURES=\"${_architectures}\"")
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
    shardwise_cuda_module(${target})
    shardwise_unity(${target})
    target_link_options(${target} PRIVATE -Wl,-z,defs)
    target_link_libraries(${target} PRIVATE "${_cuda}/../lib/libcudart.so.13")
  endfunction()
  shardwise_cuda_plugin(shardwise_cuda ${PROJECT_SOURCE_DIR}/shardwise/cuda/gpu/nccl.cpp)
endif()
