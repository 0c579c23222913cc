// two_shot in two parts, between which others may pass. The first announces where the terms lie, lazily; the
// second, once every rank has summed its slice into all of them, that this is done.
#include "shardwise/comm/work.h"

#include "shardwise/base/mutation.h"
#include "shardwise/comm/purpose.h"
#include "shardwise/comm/shm/reduce.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// Holds the terms, and with them their block, until every rank has written its slice.
class Transport::BegunTwoShot final : public Work {
 public:
  BegunTwoShot(std::shared_ptr<Transport> transport, const at::Tensor& x, uint64_t number)
      : transport_(std::move(transport)),
        x_(x),
        kernel_(reduce_kernel(x.scalar_type(), Reduce::sum)),
        number_(number),
        opening_(announce(Part::terms)) {}

  void wait() override {
    TORCH_INTERNAL_ASSERT(x_.defined(), "a sum is finished once");
    if (base::mutated(base::Mutation::drop_begun_sum)) return;
    transport_->reduce_slices(x_, *opening_, kernel_);
    opening_ = announce(Part::sums);
    transport_->channel_.await_all(*opening_);
    x_.reset();
  }

 private:
  enum class Part : uint8_t { terms, sums };

  std::shared_ptr<Opening> announce(Part part) const {
    Descriptor descriptor = descriptor_of(Op::all_reduce, x_, x_.numel());
    descriptor.split = purpose_of(number_, uint64_t(part));
    if (x_.numel() > 0) {
      const auto* const terms = static_cast<const std::byte*>(x_.const_data_ptr());
      descriptor.offset = uint64_t(terms - transport_->channel_.base(transport_->rank()));
    }
    return transport_->channel_.post_lazily(descriptor);
  }

  std::shared_ptr<Transport> transport_;
  at::Tensor x_;
  ReduceKernel kernel_;
  uint64_t number_;
  std::shared_ptr<Opening> opening_;
};

std::unique_ptr<Work> Transport::all_reduce_async_(const at::Tensor& x, uint64_t number) {
  return std::make_unique<BegunTwoShot>(shared_from_this(), x, number);
}

}  // namespace shardwise::comm::shm
