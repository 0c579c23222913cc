// Group's asynchronous all_reduce: that of the symmetric heap, or an asynchronous c10d call.
#include <utility>

#include "shardwise/comm/c10d_reduction.h"
#include "shardwise/comm/checks.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"
#include "shardwise/comm/work.h"

namespace shardwise::comm {
namespace {

/// The Work of a group of one.
class NoWork final : public Work {
 public:
  void wait() override {}
};

/// The Work of a c10d allreduce. A synchronous backend runs it in `wait`.
class C10dWork final : public Work {
 public:
  C10dWork(const at::Tensor& x, c10::intrusive_ptr<c10d::Backend> backend)
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

/// A Work that counts the bytes and the time of `wait`.
class CountedWork final : public Work {
 public:
  CountedWork(std::unique_ptr<Work> work, std::shared_ptr<Counters> counters,
              std::shared_ptr<SymmetricHeap> heap)
      : work_(std::move(work)), counters_(std::move(counters)), heap_(std::move(heap)) {}

  void wait() override {
    const Timed timed(*counters_, heap_.get());
    const int64_t copied_before = copied();
    work_->wait();
    (*counters_)[Op::all_reduce].copied_bytes += copied() - copied_before;
  }

 private:
  int64_t copied() const { return heap_ ? heap_->copied_bytes() : 0; }

  std::unique_ptr<Work> work_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<SymmetricHeap> heap_;
};

}  // namespace

std::unique_ptr<Work> Group::all_reduce_async_(const at::Tensor& x) const {
  if (size() == 1) return std::make_unique<NoWork>();
  SymmetricHeap* symmetric = state_->symmetric_heap();
  check_async_input("all_reduce_async_", x, device(), symmetric);
  const Counted counted(*state_->counters, state_->heap.get(), Op::all_reduce,
                        all_reduce_bytes(x, rank(), size()));
  std::unique_ptr<Work> work = symmetric ? symmetric->all_reduce_async_(x, ++*state_->async_operations)
                                         : std::make_unique<C10dWork>(x, state_->backend);
  return std::make_unique<CountedWork>(std::move(work), state_->counters, state_->heap);
}

}  // namespace shardwise::comm
