# `make install PREFIX=DIR`: installs the program, the rooms as a CMake package (docs/library.md), and the modules that are
# loaded at run time. No installed file contains the path of a source or build directory.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(cmake/public_headers.cmake)
set(_modules "${CMAKE_INSTALL_LIBDIR}/shardwise")
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/shardwise")

# The installed program finds torch next to its modules, or at the path that the user gave.
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${TORCH_ROOT}" NORMALIZE _torch_is_ours)
option(SHARDWISE_INSTALL_TORCH "install torch's libraries next to the modules, because this torch may be removed" ${_torch_is_ours})
set(_rpath "$ORIGIN/../${_modules}")
if(NOT SHARDWISE_INSTALL_TORCH)
  list(APPEND _rpath "${TORCH_ROOT}/lib")
endif()
set_target_properties(shardwise PROPERTIES INSTALL_RPATH "${_rpath}")
install(TARGETS shardwise RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

# The page of `shardwise plan --html`, if `make planner` has built it.
install(FILES "${PROJECT_BINARY_DIR}/planner.html" DESTINATION share/shardwise OPTIONAL)

install(TARGETS shardwise_chat_renderer LIBRARY DESTINATION "${_modules}")
install(DIRECTORY ${SHARDWISE_RENDERER_PACKAGES} DESTINATION "${_modules}/chat_renderer_packages"
  PATTERN __pycache__ EXCLUDE)
foreach(module shardwise_nccl shardwise_cuda)
  if(TARGET ${module})
    set_target_properties(${module} PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS ${module} LIBRARY DESTINATION "${_modules}")
  endif()
endforeach()
if(SHARDWISE_INSTALL_TORCH)
  # libtorch_cpu needs libraries of other wheels of its environment.
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES \"${TORCH_ROOT}/lib/libtorch_cpu.so\" \"${TORCH_ROOT}/lib/${TORCH_GOMP}\"
      RESOLVED_DEPENDENCIES_VAR needed UNRESOLVED_DEPENDENCIES_VAR missing POST_EXCLUDE_REGEXES \"^/(usr/)?lib\")
    file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${_modules}\" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN
      FILES \"${TORCH_ROOT}/lib/libtorch_cpu.so\" \"${TORCH_ROOT}/lib/${TORCH_GOMP}\" \${needed})")
endif()

# The rooms that other projects link: all except the program's.
get_property(_rooms GLOBAL PROPERTY SHARDWISE_ROOMS)
list(REMOVE_ITEM _rooms shardwise_cli shardwise_doctor)
# The module that a consumer's program loads by name: from this path in its build, by LD_LIBRARY_PATH or a RUNPATH when installed.
target_link_options(shardwise_base INTERFACE "$<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/${_modules}>")
add_custom_target(shardwise_library DEPENDS shardwise ${_rooms})  # all that is installed
install(TARGETS ${_rooms} EXPORT shardwise ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT shardwise NAMESPACE shardwise:: DESTINATION "${_package}" FILE shardwiseTargets.cmake)
foreach(header ${SHARDWISE_PUBLIC_HEADERS})
  get_filename_component(directory "${header}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/shardwise/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/shardwise/${directory}")
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/generated/shardwise/version.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/shardwise")

configure_package_config_file(cmake/shardwiseConfig.cmake.in shardwiseConfig.cmake INSTALL_DESTINATION "${_package}")
write_basic_package_version_file(shardwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/shardwiseConfig.cmake" "${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake"
  cmake/torch.cmake cmake/libraries.cmake DESTINATION "${_package}")
