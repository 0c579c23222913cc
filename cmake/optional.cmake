# Optional parts of the build. `SHARDWISE_<NAME>` is the user's setting, ON, OFF or AUTO. Whether the part can be built is
# checked at each configure and never cached, so that a package installed later is found.
#
#   shardwise_optional(NCCL "${why_not}" "GPU ranks through NCCL")
#
# sets SHARDWISE_HAS_NCCL, and SHARDWISE_LACKS_NCCL to the reason if that is OFF. An empty `why_not` means it can be built.
macro(shardwise_optional name why_not description)
  set(SHARDWISE_${name} AUTO CACHE STRING "${description}: ON, OFF, or AUTO to build it if possible")
  set_property(CACHE SHARDWISE_${name} PROPERTY STRINGS AUTO ON OFF)
  set(SHARDWISE_LACKS_${name} "${why_not}")
  if(NOT SHARDWISE_${name})
    set(SHARDWISE_LACKS_${name} "SHARDWISE_${name} is OFF")
  elseif(NOT SHARDWISE_${name} STREQUAL AUTO AND SHARDWISE_LACKS_${name})
    message(FATAL_ERROR "cmake: SHARDWISE_${name}=${SHARDWISE_${name}} cannot be built; ${SHARDWISE_LACKS_${name}}")
  endif()
  if(SHARDWISE_LACKS_${name})
    set(SHARDWISE_HAS_${name} OFF)
  else()
    set(SHARDWISE_HAS_${name} ON)
  endif()
endmacro()
