# A room is one directory and one static library. Links are explicit and point downwards only (tools/check_layers).
#
#   shardwise_room(nn LINKS parallel kernels)
#
# `<name>_isa.cpp` files are compiled once per instruction set, with SHARDWISE_ISA as their namespace, and selected at run
# time. Their headers define no function that is emitted out of line, so that they share none with other files
# (tools/check_isa_symbols).
#
# Other files are compiled in groups, each as one source: most of a source's compile time is its headers. Each group is one
# object of the library. Sources that a program needs without the rest (APART) form a group, and sources with injectable
# faults form another, whose objects tests/mutation replaces.

set(SHARDWISE_ISA_FLAGS_baseline "")
set(SHARDWISE_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(SHARDWISE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
    -mprefer-vector-width=512)

function(shardwise_holds_fault result source)
  file(STRINGS "${source}" switches REGEX "base/mutation\\.h")
  set(${result} "${switches}" PARENT_SCOPE)
endfunction()

function(_shardwise_group name)
  set(count 0)
  foreach(source ${ARGN})
    math(EXPR number "${count} / ${SHARDWISE_UNITY_SIZE}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${name}_${number}")
    math(EXPR count "${count} + 1")
  endforeach()
endfunction()

function(_shardwise_group_room room apart)
  set(faulty "")
  set(sound "")
  foreach(source ${ARGN})
    shardwise_holds_fault(fault "${source}")
    if(fault)
      list(APPEND faulty "${source}")
    elseif(NOT source IN_LIST apart)
      list(APPEND sound "${source}")
    endif()
  endforeach()
  _shardwise_group(apart ${apart})
  _shardwise_group(faulty ${faulty})
  _shardwise_group(sound ${sound})
  set_target_properties(${room} PROPERTIES UNITY_BUILD_MODE GROUP)
  shardwise_unity(${room})
endfunction()

function(_shardwise_find result)
  set(sources "")
  foreach(pattern ${ARGN})
    file(GLOB found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/shardwise/${pattern}")
    list(APPEND sources ${found})
  endforeach()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()

function(shardwise_room room)
  cmake_parse_arguments(ROOM "" "" "LINKS;SOURCES;EXCEPT;APART" ${ARGN})
  _shardwise_find(sources "${room}/*.cpp" ${ROOM_SOURCES})
  _shardwise_find(except ${ROOM_EXCEPT})
  _shardwise_find(apart ${ROOM_APART})
  list(REMOVE_ITEM sources ${except} "")
  set(isa_sources ${sources})
  list(FILTER isa_sources INCLUDE REGEX "_isa\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "(_isa|main)\\.cpp$")
  if(NOT sources)
    add_library(${room} INTERFACE)
    target_link_libraries(${room} INTERFACE ${ROOM_LINKS})
    return()
  endif()
  add_library(${room} STATIC ${sources})
  target_include_directories(${room} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${room} PUBLIC ${ROOM_LINKS})
  _shardwise_group_room(${room} "${apart}" ${sources})
  if(isa_sources)
    foreach(isa baseline avx2 avx512)
      add_library(${room}_${isa} OBJECT ${isa_sources})
      target_include_directories(${room}_${isa} PRIVATE "${PROJECT_SOURCE_DIR}")
      target_compile_definitions(${room}_${isa} PRIVATE SHARDWISE_ISA=${isa})
      target_compile_options(${room}_${isa} PRIVATE -O3 -ffp-contract=fast -fno-trapping-math ${SHARDWISE_ISA_FLAGS_${isa}})
      target_sources(${room} PRIVATE $<TARGET_OBJECTS:${room}_${isa}>)
    endforeach()
  endif()
  shardwise_precompiled_header(${room})
endfunction()

# shardwise_objects(comm_mpi SOURCE...): compiles an optional part of a room, or its replacement, as separate objects of the
# room's archive, so that they are not linked with its other members.
function(shardwise_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE torch::torch_cpu)
  shardwise_precompiled_header(${name})
  shardwise_unity(${name})
endfunction()
