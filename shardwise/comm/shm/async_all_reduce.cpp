// The asynchronous two-shot all_reduce, as two deferred collectives with other collectives in between. The
// first posts the offset of this rank's partial sum. `wait` reduces this rank's slice into all buffers, then
// posts the second, which tells the peers that the slice is written.
#include "shardwise/comm/work.h"

#include "shardwise/base/mutation.h"
#include "shardwise/comm/operation_tag.h"
#include "shardwise/comm/reduce.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// Holds the partial sum, and with it its block, until every rank has written its slice.
class Transport::AsyncTwoShot final : public Work {
 public:
  AsyncTwoShot(std::shared_ptr<Transport> transport, const at::Tensor& x, uint64_t number)
      : transport_(std::move(transport)),
        x_(x),
        kernel_(reduce_kernel(x.scalar_type(), Reduce::sum)),
        number_(number),
        arrivals_(post(Step::partials)) {}

  void wait() override {
    TORCH_INTERNAL_ASSERT(x_.defined(), "Work::wait is called once");
    if (base::mutated(base::Mutation::drop_async_all_reduce)) return;
    transport_->reduce_slices(x_, *arrivals_, kernel_);
    arrivals_ = post(Step::sums);
    transport_->channel_.wait_for_arrivals(*arrivals_);
    x_.reset();
  }

 private:
  enum class Step : uint8_t { partials, sums };

  std::shared_ptr<Arrivals> post(Step step) const {
    Descriptor descriptor = descriptor_of(Op::all_reduce, x_, x_.numel());
    descriptor.split = operation_tag(number_, uint64_t(step));
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
