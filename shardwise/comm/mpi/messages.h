// Point-to-point messages: c10d's send, recv and recv_anysource.
//
// An envelope {dtype, numel, tag} precedes each message, so that a size or dtype mismatch is an error that
// names both sides; it also carries a small message. A longer message follows under a tag of its own, so that
// receives may be waited for in any order. A send copies its tensor and returns; MPI's thread progresses it
// (process.h). A receive is posted at once and completed by its Work. Messages of one source and tag match
// receives in order.
#pragma once
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shardwise/comm/mpi/channel.h"

namespace shardwise::comm::mpi {

class Messages {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit Messages(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  /// Sends a copy of `x`. Errors: c10::ValueError if MPI cannot represent the tag.
  WorkPtr send(const at::Tensor& x, int peer, int tag);
  /// Posts a receive; `peer` may be kAnySource. The Work's wait throws base::CommError.
  WorkPtr receive(const at::Tensor& x, int peer, int tag);

 private:
  int to_mpi_tag(int tag, const char* op) const;

  std::shared_ptr<Channel> channel_;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace shardwise::comm::mpi
