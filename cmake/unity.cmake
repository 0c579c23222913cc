# Sources compiled several at once, as one: most of what a source costs the compiler is its headers'. What is in an
# unnamed namespace must differ within a target then.

option(SHARDWISE_UNITY "compile sources in groups: half the work from nothing; a change costs its group" ON)
set(SHARDWISE_UNITY_SIZE 8)

function(shardwise_unity target)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${SHARDWISE_UNITY} UNITY_BUILD_BATCH_SIZE ${SHARDWISE_UNITY_SIZE})
endfunction()
