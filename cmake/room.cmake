# A room is one directory of shardwise/ and one static library, shardwise::<name>. Links are explicit and point downwards
# only (tools/check_layers): names without :: are rooms.
#
#   shardwise_room(nn LINKS parallel kernels)
#
# LINKS are linked by users of the room too; HIDES only by its sources. PCH is the precompiled header (cmake/pch.cmake).
# Sources are compiled in groups (cmake/flags.cmake), except those in APART: each is compiled alone, so that a program that
# needs only these links no others.
#
# `<name>_isa.cpp` files are compiled once per instruction set, with SHARDWISE_ISA as their namespace, and selected at run
# time. Their headers define no function that is emitted out of line, so that they share none with other files
# (tools/check_isa_symbols). `<name>_vnni.cpp`, `<name>_bf16.cpp` and `<name>_amx.cpp` files are compiled only for the
# instruction set whose instructions they name: AVX-512 VNNI, AVX-512 BF16 with it, AMX with both; `<name>_tiles.cpp` files for
# both AVX-512 BF16 and AMX, with SHARDWISE_ISA as their namespace.
#
# A directory that contains `no_<part>.cpp` is an optional part (cmake/optional.cmake): with SHARDWISE_HAS_<PART> all its
# other sources are compiled, without it only this one.

set(SHARDWISE_ISA_FLAGS_baseline "")
set(SHARDWISE_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(SHARDWISE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
    -mprefer-vector-width=512)
set(SHARDWISE_ISA_FLAGS_avx512_vnni ${SHARDWISE_ISA_FLAGS_avx512} -mavx512vnni)
set(SHARDWISE_ISA_FLAGS_avx512_bf16 ${SHARDWISE_ISA_FLAGS_avx512_vnni} -mavx512bf16)
set(SHARDWISE_ISA_FLAGS_amx ${SHARDWISE_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16 -mamx-int8)

function(_shardwise_find result)
  set(sources "")
  foreach(pattern ${ARGN})
    file(GLOB found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/shardwise/${pattern}")
    list(APPEND sources ${found})
  endforeach()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()

# Keeps the sources of an optional part, or the one that replaces them.
function(_shardwise_choose result room sources)
  get_filename_component(part "${room}" NAME)
  set(replacement "${PROJECT_SOURCE_DIR}/shardwise/${room}/no_${part}.cpp")
  string(TOUPPER "${part}" PART)
  if(NOT replacement IN_LIST sources)
    set(chosen ${sources})
  elseif(SHARDWISE_HAS_${PART})
    set(chosen ${sources})
    list(REMOVE_ITEM chosen "${replacement}")
  else()
    set(chosen "${replacement}")
  endif()
  set(${result} "${chosen}" PARENT_SCOPE)
endfunction()

function(_shardwise_isa target isa sources)
  add_library(${target}_${isa} OBJECT ${sources})
  target_link_libraries(${target}_${isa} PRIVATE shardwise_flags)
  target_include_directories(${target}_${isa} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${target}_${isa} PRIVATE SHARDWISE_ISA=${isa})
  target_compile_options(${target}_${isa} PRIVATE $<IF:$<BOOL:${SHARDWISE_FUZZ}>,-O0,-O3>
    -ffp-contract=fast -fno-trapping-math ${SHARDWISE_ISA_FLAGS_${isa}})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${isa}>)
endfunction()

# Translates names of rooms into their targets.
function(_shardwise_targets result)
  set(targets "")
  foreach(name ${ARGN})
    if(NOT name MATCHES "::")
      string(REPLACE "/" "_" name "shardwise::${name}")
    endif()
    list(APPEND targets ${name})
  endforeach()
  set(${result} "${targets}" PARENT_SCOPE)
endfunction()

function(_shardwise_library name target)
  add_library(${target} STATIC ${ARGN})
  add_library(shardwise::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY SHARDWISE_ROOMS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>" $<INSTALL_INTERFACE:include>)
endfunction()

function(shardwise_room room)
  cmake_parse_arguments(ROOM "" "PCH" "LINKS;HIDES;EXCEPT;APART" ${ARGN})
  _shardwise_find(sources "${room}/*.cpp")
  _shardwise_find(except ${ROOM_EXCEPT})
  _shardwise_find(apart ${ROOM_APART})
  list(REMOVE_ITEM sources ${except} "")
  _shardwise_choose(sources "${room}" "${sources}")
  set(isa_sources ${sources})
  list(FILTER isa_sources INCLUDE REGEX "_isa\\.cpp$")
  set(wide_isas avx512_vnni avx512_bf16 amx)  # of files that name one
  foreach(isa ${wide_isas})
    string(REPLACE "avx512_" "" suffix ${isa})
    set(${isa}_sources ${sources})
    if(NOT isa STREQUAL "avx512_vnni")
      string(APPEND suffix "|tiles")
    endif()
    list(FILTER ${isa}_sources INCLUDE REGEX "_(${suffix})\\.cpp$")
  endforeach()
  list(FILTER sources EXCLUDE REGEX "(_isa|_vnni|_bf16|_amx|_tiles|/main)\\.cpp$")
  string(REPLACE "/" "_" name "${room}")
  set(target shardwise_${name})
  _shardwise_library(${name} ${target} ${sources})
  _shardwise_targets(links ${ROOM_LINKS})
  target_link_libraries(${target} PUBLIC ${links} PRIVATE $<BUILD_INTERFACE:shardwise_flags> ${ROOM_HIDES})
  shardwise_unity(${target})
  set_source_files_properties(${apart} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  foreach(isa baseline avx2 avx512)
    if(isa_sources)
      _shardwise_isa(${target} ${isa} "${isa_sources}")
    endif()
  endforeach()
  foreach(isa ${wide_isas})
    if(${isa}_sources)
      _shardwise_isa(${target} ${isa} "${${isa}_sources}")
      # GCC 12 reports the undefined vectors of its own intrinsics (GCC bug 105593).
      target_compile_options(${target}_${isa} PRIVATE -Wno-uninitialized
        $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    endif()
  endforeach()
  if(NOT ROOM_PCH)
    set(ROOM_PCH tensor)
  endif()
  shardwise_precompiled_header(${target} ${ROOM_PCH})
endfunction()
