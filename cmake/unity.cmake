# Unity builds: compiles several sources as one, because most of a source's compile time is its headers. Names in unnamed
# namespaces must therefore be unique within a target.

option(SHARDWISE_UNITY "compile sources in groups: halves a full build; a change rebuilds its group" ON)
set(SHARDWISE_UNITY_SIZE 8)

function(shardwise_unity target)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${SHARDWISE_UNITY} UNITY_BUILD_BATCH_SIZE ${SHARDWISE_UNITY_SIZE})
endfunction()
