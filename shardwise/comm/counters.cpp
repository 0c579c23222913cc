#include "shardwise/comm/counters.h"

namespace shardwise::comm {

std::string_view name(Op op) {
  static constexpr std::array<std::string_view, kCountedOps + 3> names = {
      "broadcast",  "all_gather", "all_reduce", "reduce_scatter", "scatter",          "gather",
      "all_to_all", "barrier",    "send",       "share_shard",    "fused_all_reduce", "fused_reduce_scatter"};
  return names[static_cast<int>(op)];
}

OpCount Counters::total() const {
  OpCount total;
  for (const OpCount& op : ops) {
    total.calls += op.calls;
    total.bytes += op.bytes;
    total.copied_bytes += op.copied_bytes;
  }
  return total;
}

Counters operator-(const Counters& after, const Counters& before) {
  Counters difference = after;
  for (int i = 0; i < kCountedOps; ++i) {
    difference.ops[i].calls -= before.ops[i].calls;
    difference.ops[i].bytes -= before.ops[i].bytes;
    difference.ops[i].copied_bytes -= before.ops[i].copied_bytes;
  }
  difference.busy_ns -= before.busy_ns;
  difference.waiting_ns -= before.waiting_ns;
  return difference;
}

}  // namespace shardwise::comm
