// Writes the counts of a coverage build where a process may be killed before it exits. Does nothing in other
// builds.
#pragma once

extern "C" {
[[gnu::weak]] void __gcov_dump();
[[gnu::weak]] void __gcov_reset();
}

namespace shardwise::testing {

inline void write_counts() {
  if (__gcov_dump == nullptr) return;
  __gcov_dump();
  __gcov_reset();  // what follows counts too
}

}  // namespace shardwise::testing
