// What backends have in common: the calls that the others imply.
#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

void CollectiveBackend::all_gather_even(at::Tensor& out, const at::Tensor& shard) {
  const at::Tensor flat = out.view({-1});
  Tensors pieces;
  for (int peer = 0; peer < size(); ++peer)
    pieces.push_back(flat.narrow(0, peer * shard.numel(), shard.numel()).view(shard.sizes()));
  all_gather(pieces, shard);
}

std::unique_ptr<Work> CollectiveBackend::start_all_reduce_(const at::Tensor& x) {
  return std::make_unique<CallWork>([this, target = x]() mutable { all_reduce_(target, Reduce::sum); });
}

std::unique_ptr<Work> CollectiveBackend::start_broadcast_(const at::Tensor& x, int root) {
  return std::make_unique<CallWork>([this, target = x, root]() mutable { broadcast_(target, root); });
}

std::unique_ptr<Work> CollectiveBackend::start_gather(const Tensors& pieces, const at::Tensor& shard,
                                                      int root) {
  return std::make_unique<CallWork>(
      [this, targets = pieces, shard, root]() mutable { gather(targets, shard, root); });
}

}  // namespace shardwise::comm
