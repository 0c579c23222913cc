// Group's point-to-point messages.
#include <ATen/ops/empty.h>

#include "shardwise/comm/checks.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/group_state.h"

namespace shardwise::comm {

void Group::send(const at::Tensor& x, int to, int tag) const {
  check_peer("send", to, rank(), size());
  const Counted counted(*state_->counters, state_->heap.get(), Op::send, int64_t(x.nbytes()));
  std::vector<at::Tensor> tensors = {state_->symmetric_heap() ? x : x.contiguous()};
  state_->backend->send(tensors, to, tag)->wait();
}

void Group::recv_(at::Tensor& x, int from, int tag) const {
  check_peer("recv", from, rank(), size());
  const Counted counted(*state_->counters, state_->heap.get(), Op::send, /*bytes=*/0);
  const bool direct = state_->symmetric_heap() != nullptr || x.is_contiguous();
  std::vector<at::Tensor> tensors = {direct ? x : at::empty(x.sizes(), x.options())};
  state_->backend->recv(tensors, from, tag)->wait();
  if (!direct) x.copy_(tensors[0]);
}

}  // namespace shardwise::comm
