# Multi-node ranks over Open MPI, if it is installed (shardwise/comm/mpi, docs/adr/0017). Without it no_mpi.cpp replaces
# that directory.

unset(__pkg_config_checked_OMPI CACHE)  # pkg-config's cached result would hide a later installation
pkg_check_modules(OMPI QUIET IMPORTED_TARGET ompi-c>=4)
if(NOT EXISTS "${SHARDWISE_MPIRUN}")
  unset(SHARDWISE_MPIRUN CACHE)
endif()
find_program(SHARDWISE_MPIRUN NAMES mpirun.openmpi mpirun DOC "Open MPI's mpirun, for the tests")
set(_mpi_why_not "")
if(NOT OMPI_FOUND OR NOT SHARDWISE_MPIRUN)
  set(_mpi_why_not "Open MPI is not installed (Debian: libopenmpi-dev, openmpi-bin)")
endif()
shardwise_optional(MPI "${_mpi_why_not}" "multi-node ranks through Open MPI")

set(SHARDWISE_MPI_LIBRARY "")  # what shardwise/comm/mpi links
if(SHARDWISE_HAS_MPI)
  message(STATUS "MPI: Open MPI ${OMPI_VERSION}, for multi-node ranks")
  set(SHARDWISE_MPI_LIBRARY PkgConfig::OMPI)
  # Its C++ classes would need a separate library.
  target_compile_definitions(PkgConfig::OMPI INTERFACE OMPI_SKIP_MPICXX)
else()
  message(STATUS "MPI: none (${SHARDWISE_LACKS_MPI}), ranks run on one node")
endif()
