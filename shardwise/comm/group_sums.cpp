// Group's all_reduce in two parts: the shared memory's, or a c10d call that goes on by itself.
#include <utility>

#include "shardwise/comm/c10d_reduction.h"
#include "shardwise/comm/checks.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"
#include "shardwise/comm/work.h"

namespace shardwise::comm {
namespace {

/// Of a group of one.
class NoSum final : public Work {
 public:
  void wait() override {}
};

/// A call that goes on by itself, or, where the backend works only inside its calls, one at the end.
class SumByCall final : public Work {
 public:
  SumByCall(const at::Tensor& x, c10::intrusive_ptr<c10d::Backend> backend)
      : tensors_{x}, backend_(std::move(backend)) {
    if (!is_synchronous(*backend_)) work_ = call();
  }

  void wait() override {
    const c10::NoGradGuard no_grad;
    (work_ ? std::move(work_) : call())->wait();
    tensors_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::Work> call() {
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(Reduce::sum);
    return backend_->allreduce(tensors_, options);
  }

  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// Counts what its end copies and takes.
class CountedSum final : public Work {
 public:
  CountedSum(std::unique_ptr<Work> sum, std::shared_ptr<Counters> counters,
             std::shared_ptr<SymmetricHeap> shared)
      : sum_(std::move(sum)), counters_(std::move(counters)), shared_(std::move(shared)) {}

  void wait() override {
    const Timed timed(*counters_, shared_.get());
    const int64_t copied_before = copied();
    sum_->wait();
    (*counters_)[Op::all_reduce].copied_bytes += copied() - copied_before;
  }

 private:
  int64_t copied() const { return shared_ ? shared_->copied_bytes() : 0; }

  std::unique_ptr<Work> sum_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<SymmetricHeap> shared_;
};

}  // namespace

std::unique_ptr<Work> Group::all_reduce_async_(const at::Tensor& x) const {
  if (size() == 1) return std::make_unique<NoSum>();
  SymmetricHeap* symmetric = state_->symmetric_heap();
  check_begun("all_reduce_async_", x, device(), symmetric);
  const Counted counted(*state_->counters, state_->shared.get(), Op::all_reduce,
                        all_reduce_bytes(x, rank(), size()));
  std::unique_ptr<Work> sum = symmetric ? symmetric->all_reduce_async_(x, ++*state_->begun_sums)
                                        : std::make_unique<SumByCall>(x, state_->backend);
  return std::make_unique<CountedSum>(std::move(sum), state_->counters, state_->shared);
}

}  // namespace shardwise::comm
