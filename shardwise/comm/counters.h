// The collectives of a group, and what they have cost this rank so far: calls, bytes, time.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace shardwise::comm {

enum class Op : uint8_t {
  broadcast,
  all_gather,
  all_reduce,
  reduce_scatter,
  scatter,
  gather,
  all_to_all,
  barrier,
  send,  // and the receive of the message, which sends nothing
  // These have the counter of the collective that they stand for.
  share_shard,          // all_gather
  fused_all_reduce,     // all_reduce
  fused_reduce_scatter  // reduce_scatter
};
inline constexpr int kCountedOps = 9;
std::string_view name(Op op);

/// `bytes` are those a rank sends in the collective whatever the algorithm (docs/algorithms.md).
/// `copied_bytes` are those that this rank really copied between tensors and shared memory: inputs staged,
/// outputs gathered from peers (the own shard's part included), sums written into peers' buffers. Not
/// counted: reading in place, and a reduction's result in the rank's own memory. Zero where the group's ranks
/// share no memory. In shared memory, with n bytes in the message and `own` of them this rank's, that is
///   all_reduce      n, and what all_reduce_ copies in place
///   all_reduce_     n in one shot (comm/shm/one_shot.h); else own·(t−1). Foreign: of up to 4 ranks n on
///                   all if x is on any (shm/chunks.cpp), of more own·(t−1) + 2n
///   all_reduce_async_  own·(t−1)
///   reduce_scatter  0, or n when x is foreign
///   all_gather      n, and own more when the shard is foreign
///   share_shard          0, or own when the shard is foreign
///   …_terms         0, or n when x is foreign
///   broadcast       n; at the root 0, or n when x is foreign
///   send            n, at the sender and at the receiver
struct OpCount {
  int64_t calls = 0;
  int64_t bytes = 0;
  int64_t copied_bytes = 0;
  bool operator==(const OpCount&) const = default;
};

struct Counters {
  std::array<OpCount, kCountedOps> ops{};
  int64_t busy_ns = 0;     // inside collectives, waiting and a reader of terms included
  int64_t waiting_ns = 0;  // of that, for a peer to come or to finish; 0 where the group shares no memory

  const OpCount& operator[](Op op) const { return ops[place(op)]; }
  OpCount& operator[](Op op) { return ops[place(op)]; }
  OpCount total() const;

 private:
  static size_t place(Op op) {
    if (op == Op::fused_all_reduce) return size_t(Op::all_reduce);
    if (op == Op::fused_reduce_scatter) return size_t(Op::reduce_scatter);
    return size_t(op == Op::share_shard ? Op::all_gather : op);
  }
};
Counters operator-(const Counters& after, const Counters& before);

}  // namespace shardwise::comm
