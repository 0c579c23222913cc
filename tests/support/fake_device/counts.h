// What a program made the device do.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace shardwise::fake_device {

struct Counts {
  int64_t reads = 0;                         // copies that block and values that the host asked for: it waits
  int64_t launches = 0;                      // kernels, those of graphs included
  int64_t captures = 0;                      // of graphs
  int64_t replays = 0;                       // of graphs
  std::map<std::string, int64_t> fallbacks;  // operations of ATen that ran on the CPU, as "aten::mm"
};
/// Returns what happened since the process began, or since reset_counts().
Counts counts();
void reset_counts();

/// Errors: c10::Error while a graph is captured, for which the host may not wait.
void count_read();
void count_capture();
void count_replay();
void count_fallback(const std::string& name);

}  // namespace shardwise::fake_device
