// Messages between two ranks: c10d's send, recv and recv_anysource.
//
// An envelope {dtype, numel, tag} goes before each message, so that another size or dtype is an error that
// names both sides, and holds a small one. A longer one follows under a tag of its own, by which receives may
// be waited for in any order. A send copies its tensor and is done; MPI's own thread looks after it
// (process.h). A receive is posted at once and waited for by its Work; of one source and tag, messages go to
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
  /// Errors: c10::ValueError for a tag that MPI does not take.
  WorkPtr send(const at::Tensor& x, int peer, int tag);
  /// `peer` may be kAnySource. The Work's wait gives base::CommError.
  WorkPtr receive(const at::Tensor& x, int peer, int tag);

 private:
  int checked(int tag, const char* op) const;

  std::shared_ptr<Channel> channel_;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace shardwise::comm::mpi
