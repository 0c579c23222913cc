// Counters of a group's collectives on this rank: calls, bytes and time.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace shardwise::comm {

/// The collectives that a group counts.
enum class Op : uint8_t {
  broadcast,
  all_gather,
  all_reduce,
  reduce_scatter,
  scatter,
  gather,
  all_to_all,
  barrier,
  send,  // and recv, which adds 0 bytes
  // These share the counter of the collective that they replace.
  share_shard,          // all_gather
  fused_all_reduce,     // all_reduce
  fused_reduce_scatter  // reduce_scatter
};
/// The number of counters; the last three ops have none of their own.
inline constexpr int kCountedOps = 9;
/// Returns the name of `op`, such as "all_reduce".
inline std::string_view name(Op op) {
  static constexpr std::array<std::string_view, kCountedOps + 3> names = {
      "broadcast",  "all_gather", "all_reduce", "reduce_scatter", "scatter",          "gather",
      "all_to_all", "barrier",    "send",       "share_shard",    "fused_all_reduce", "fused_reduce_scatter"};
  return names[static_cast<int>(op)];
}

/// The calls and bytes of one collective.
///
/// `bytes` is what this rank sends in the collective, independent of the algorithm (docs/algorithms.md).
/// `copied_bytes` is what this rank actually copied between tensors and the symmetric heap: staged inputs,
/// outputs gathered from peers (this rank's part included), and sums written into peers' buffers. Reads in
/// place and reduction results in this rank's memory are not counted. It is 0 without a symmetric heap. With
/// one, for a tensor of n bytes of which this rank's slice has m, and "unregistered" for a tensor outside the
/// heap, it is:
///   all_reduce         n, plus the row below
///   all_reduce_        one-shot (comm/shm/one_shot.h): n; else m·(t−1). With up to 4 ranks, n if x is
///                      unregistered on any rank (shm/all_reduce.cpp); with more,
///                      m·(t−1) + 2n if x is unregistered on this rank
///   all_reduce_async_  m·(t−1)
///   reduce_scatter     0; n if x is unregistered
///   all_gather         n; n + m if the shard is unregistered
///   share_shard        0; m if the shard is unregistered
///   fused_…            0; n if x is unregistered
///   broadcast          n; at the root 0, or n if x is unregistered
///   send               n, at the sender and at the receiver
struct OpCount {
  int64_t calls = 0;         // of the collective
  int64_t bytes = 0;         // sent
  int64_t copied_bytes = 0;  // to and from the symmetric heap
  bool operator==(const OpCount&) const = default;
};

/// The counters of a group since its construction.
struct Counters {
  std::array<OpCount, kCountedOps> ops{};  // by collective
  int64_t busy_ns = 0;                     // in collectives, including waits and the kernels of fused ones
  int64_t waiting_ns = 0;  // the part of busy_ns spent waiting for peers; 0 without a symmetric heap

  /// Returns the counter to which `op` is added.
  const OpCount& operator[](Op op) const { return ops[index(op)]; }
  /// Returns the counter to which `op` is added.
  OpCount& operator[](Op op) { return ops[index(op)]; }
  /// Returns the sum over the collectives.
  OpCount total() const {
    OpCount total;
    for (const OpCount& op : ops) {
      total.calls += op.calls;
      total.bytes += op.bytes;
      total.copied_bytes += op.copied_bytes;
    }
    return total;
  }

 private:
  static size_t index(Op op) {
    if (op == Op::fused_all_reduce) return size_t(Op::all_reduce);
    if (op == Op::fused_reduce_scatter) return size_t(Op::reduce_scatter);
    return size_t(op == Op::share_shard ? Op::all_gather : op);
  }
};
/// Returns what was counted between two points in time.
inline Counters operator-(const Counters& after, const Counters& before) {
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
/// Returns what two groups have counted together.
inline Counters operator+(const Counters& a, const Counters& b) {
  return a - (Counters{} - b);
}

}  // namespace shardwise::comm
