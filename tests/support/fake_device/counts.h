// What a program made the device do.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace shardwise::fake_device {

struct Counts {
  int64_t reads = 0;                         // copies that block and values that the host asked for: it waits
  int64_t launches = 0;                      // kernels
  std::map<std::string, int64_t> fallbacks;  // operations of ATen that ran on the CPU, as "aten::mm"
};
/// Returns what happened since the process began, or since reset_counts().
Counts counts();
void reset_counts();

void count_read();
void count_fallback(const std::string& name);

}  // namespace shardwise::fake_device
