// The GPUs that kernels were compiled for.
#pragma once
#include <algorithm>
#include <string_view>

namespace shardwise::cuda {

/// Returns whether kernels run on a GPU of compute capability `capability`, as 90 for 9.0. `compiled`: what
/// they were compiled for, by spaces: sm_N, which runs on GPUs of its major version from N on, or compute_N,
/// PTX, which runs from N on. Source: CUDA C++ Programming Guide, "Binary Compatibility".
constexpr bool runs_on(std::string_view compiled, int capability) {
  while (!compiled.empty()) {
    const size_t end = std::min(compiled.find(' '), compiled.size());
    const std::string_view one = compiled.substr(0, end);
    compiled.remove_prefix(std::min(end + 1, compiled.size()));
    int version = 0;
    for (const char digit : one.substr(one.find('_') + 1)) version = 10 * version + (digit - '0');
    const bool is_ptx = one.starts_with("compute_");
    if (capability >= version && (is_ptx || capability / 10 == version / 10)) return true;
  }
  return false;
}

}  // namespace shardwise::cuda
