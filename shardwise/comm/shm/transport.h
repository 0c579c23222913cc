// The collectives of the shared-memory backend on CPU tensors, called by Group (through SymmetricHeap) and by
// c10d (through Backend).
//
// Peers read an input in place if it is contiguous and in the symmetric heap. Otherwise the input is staged:
// copied to the slot if it is small, else to a heap block. channel.h orders collectives and detects failures;
// heap.h decides when memory is reused.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/reduce_isa.h"
