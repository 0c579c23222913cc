// The collectives that a rank posts and completes later, with other collectives in between: share_shard,
// whose peers are waited for one by one, and the asynchronous two-shot all_reduce.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "shardwise/base/hash.h"
#include "shardwise/comm/descriptor.h"
#include "shardwise/comm/reduce.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

/// One rank's view of the shards that all ranks share.
class SharedShard final : public PeerShards, public std::enable_shared_from_this<SharedShard> {
 public:
  SharedShard(std::shared_ptr<Transport> transport, std::shared_ptr<Arrivals> arrivals, at::Tensor shard,
              base::Split split)
      : transport_(std::move(transport)),
        arrivals_(std::move(arrivals)),
        shard_(std::move(shard)),
        split_(std::move(split)) {
    transport_->channel().toggle_shard(arrivals_->sequence);
  }
  ~SharedShard() override { transport_->channel().toggle_shard(arrivals_->sequence); }
  SharedShard(const SharedShard&) = delete;

  at::Tensor get(int rank) override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Arrivals> arrivals_;
  at::Tensor shard_;
  base::Split split_;
};

at::Tensor SharedShard::get(int rank) {
  Channel& channel = transport_->channel();
  const Descriptor& descriptor = channel.wait_for_arrival(*arrivals_, rank);
  at::DimVector sizes(shard_.sizes());
  sizes[0] = split_.range(rank).size();
  // Also the rank's own shard and one without elements hold: all ranks must hold alike.
  const auto hold = [self = shared_from_this()](void*) {};
  return at::from_blob(channel.base(rank) + descriptor.offset, sizes, hold, shard_.options());
}

}  // namespace

std::shared_ptr<PeerShards> Transport::share_shard(const at::Tensor& shard, const base::Split& split,
                                                   uint64_t tag, Op op) {
  TORCH_INTERNAL_ASSERT(contains(shard) && shard.is_contiguous());
  Descriptor descriptor;
  descriptor.op = op;
  descriptor.dtype = static_cast<int8_t>(shard.scalar_type());
  descriptor.numel = c10::multiply_integers(shard.sizes().slice(1)) * split.size();
  descriptor.split = base::mix(split.hash(), tag);
  if (shard.numel() > 0) {
    descriptor.offset =
        uint64_t(static_cast<const std::byte*>(shard.const_data_ptr()) - channel_.base(rank()));
  }
  return std::make_shared<SharedShard>(shared_from_this(), channel_.post_deferred(descriptor), shard, split);
}

/// Two deferred collectives. The first posts the offset of this rank's partial sum. `wait` reduces this
/// rank's slice into all buffers, then posts the second, which tells the peers that the slice is written.
/// Holds the partial sum, and with it its block, until every rank has written its slice.
class Transport::AsyncTwoShot final : public Work {
 public:
  AsyncTwoShot(std::shared_ptr<Transport> transport, const at::Tensor& x, uint64_t number)
      : transport_(std::move(transport)),
        x_(x),
        kernel_(reduce_kernel(x.scalar_type(), Reduce::sum)),
        number_(number),
        arrivals_(post(Phase::partials)) {}

  void wait() override {
    TORCH_INTERNAL_ASSERT(x_.defined(), "Work::wait is called once");
    transport_->reduce_slices(x_, *arrivals_, kernel_);
    arrivals_ = post(Phase::sums);
    transport_->channel_.wait_for_arrivals(*arrivals_);
    x_.reset();
  }

 private:
  enum class Phase : uint8_t { partials, sums };

  std::shared_ptr<Arrivals> post(Phase phase) const {
    Descriptor descriptor = descriptor_of(Op::all_reduce, x_, x_.numel());
    descriptor.split = operation_tag(number_, uint64_t(phase));
    if (x_.numel() > 0) {
      const auto* const partial = static_cast<const std::byte*>(x_.const_data_ptr());
      descriptor.offset = uint64_t(partial - transport_->channel_.base(transport_->rank()));
    }
    return transport_->channel_.post_deferred(descriptor);
  }

  std::shared_ptr<Transport> transport_;
  at::Tensor x_;
  ReduceKernel kernel_;
  uint64_t number_;
  std::shared_ptr<Arrivals> arrivals_;
};

std::unique_ptr<Work> Transport::all_reduce_async_(const at::Tensor& x, uint64_t number) {
  return std::make_unique<AsyncTwoShot>(shared_from_this(), x, number);
}

}  // namespace shardwise::comm::shm
