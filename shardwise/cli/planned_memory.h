// The peak memory of each rank, planned before a run starts: as a line of text and as JSON.
#pragma once
#include <c10/util/Exception.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardwise::cli {

/// One rank's planned peaks of tensor memory, in bytes.
struct PlannedMemory {
  int64_t private_bytes;         // outside the symmetric heap
  int64_t symmetric_heap_bytes;  // memory that the ranks share; 0 for a rank alone

  int64_t bytes() const { return private_bytes + symmetric_heap_bytes; }
  bool operator==(const PlannedMemory&) const = default;
};

/// By rank; empty if plan/ does not model the run.
using PlannedMemories = std::vector<PlannedMemory>;

/// Returns a line like "planned peak memory: ranks 0 to 1: 88.32 MB (69.05 private, 19.27 shared)".
std::string to_text(const PlannedMemories& by_rank);

/// Adds what was planned to the error of a device whose memory is full. Errors: c10::Error, in any case.
[[noreturn]] void throw_with_plan(const std::string& command, const c10::OutOfMemoryError& error,
                                  const PlannedMemories& planned);

/// Calls `run`. Errors: its own; throw_with_plan's if a device's memory is full.
template <class Run>
auto with_plan_in_error(const std::string& command, const PlannedMemories& planned, const Run& run) {
  try {
    return run();
  } catch (const c10::OutOfMemoryError& error) {
    throw_with_plan(command, error, planned);
  }
}

/// Returns a list with rank, private_bytes, symmetric_heap_bytes and bytes, their sum, of each rank.
nlohmann::ordered_json to_json(const PlannedMemories& by_rank);

}  // namespace shardwise::cli
