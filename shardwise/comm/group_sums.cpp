// Group's all_reduce in two parts. In shared memory the first part tells the peers where the terms lie;
// elsewhere it is a c10d call that goes on by itself.
#include <utility>

#include "shardwise/base/hash.h"
#include "shardwise/base/mutation.h"
#include "shardwise/comm/begun_sum.h"
#include "shardwise/comm/c10d_reduction.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"
#include "shardwise/comm/shm/reduce.h"

namespace shardwise::comm {
namespace {

/// Of a group of one.
class NoSum final : public BegunSum {
 public:
  void finish() override {}
};

/// Each rank sums its slice of all terms into all of them, as comm/shm's two_shot does, whose bits these are.
/// Between the two exposures a rank writes its slice alone; nobody has left the first before the second.
class ExposedTerms final : public BegunSum {
 public:
  ExposedTerms(const at::Tensor& x, base::Range own, uint64_t number, std::shared_ptr<Counters> counters,
               std::shared_ptr<Symmetric> symmetric, int ranks)
      : reduce_(shm::reduce_kernel(x.scalar_type(), Reduce::sum)),
        terms_(x.view(-1)),
        own_(own),
        wholes_(base::Split::even("terms", x.numel() * ranks, ranks)),
        number_(number),
        counters_(std::move(counters)),
        symmetric_(std::move(symmetric)),
        exposed_(expose(Part::terms)) {}

  void finish() override {
    const Timed timed(*counters_, symmetric_.get());
    if (base::mutated(base::Mutation::drop_begun_sum)) return;
    sum_own_slice();
    exposed_ = expose(Part::sums);
    for (int peer = 0; peer < wholes_.ranks(); ++peer) exposed_->read(peer);  // its slice is written
    exposed_.reset();
    terms_.reset();
  }

 private:
  enum class Part : uint8_t { terms, sums };

  std::shared_ptr<Exposed> expose(Part part) const {
    return symmetric_->expose(terms_, wholes_, base::mix(number_, uint64_t(part)));
  }

  void sum_own_slice() {
    std::vector<const void*> sources;
    std::vector<void*> targets;
    for (int peer = 0; peer < wholes_.ranks(); ++peer) {
      void* slice = exposed_->read(peer).narrow(0, own_.begin, own_.size()).mutable_data_ptr();
      sources.push_back(slice);
      targets.push_back(slice);
    }
    reduce_(sources.data(), wholes_.ranks(), targets.data(), wholes_.ranks(), own_.size());
    (*counters_)[Op::all_reduce].copied_bytes += own_.size() * terms_.element_size() * (wholes_.ranks() - 1);
  }

  shm::ReduceKernel reduce_;
  at::Tensor terms_;
  base::Range own_;
  base::Split wholes_;  // every rank's "shard" is its whole tensor
  uint64_t number_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<Symmetric> symmetric_;
  std::shared_ptr<Exposed> exposed_;
};

/// A call that goes on by itself, or, where the backend works only inside its calls, one at the end.
class SumByCall final : public BegunSum {
 public:
  SumByCall(const at::Tensor& x, std::shared_ptr<Counters> counters, std::shared_ptr<Symmetric> shared,
            c10::intrusive_ptr<c10d::Backend> backend)
      : tensors_{x},
        counters_(std::move(counters)),
        shared_(std::move(shared)),
        backend_(std::move(backend)) {
    if (!works_in_calls(*backend_)) work_ = call();
  }

  void finish() override {
    const Timed timed(*counters_, shared_.get());
    const c10::NoGradGuard no_grad;
    const int64_t copied_before = shared_ ? shared_->copied_bytes() : 0;
    (work_ ? std::move(work_) : call())->wait();
    if (shared_) (*counters_)[Op::all_reduce].copied_bytes += shared_->copied_bytes() - copied_before;
    tensors_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::Work> call() {
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(Reduce::sum);
    return backend_->allreduce(tensors_, options);
  }

  std::vector<at::Tensor> tensors_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<Symmetric> shared_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace

std::unique_ptr<BegunSum> Group::begin_all_reduce_(const at::Tensor& x) const {
  if (size() == 1) return std::make_unique<NoSum>();
  Symmetric* symmetric = state_->symmetric();
  TORCH_CHECK_VALUE(x.is_contiguous() && (!symmetric || symmetric->contains(x)),
                    "begin_all_reduce_: the input must be contiguous and come from Group::empty; got ",
                    x.sizes(), " of ", x.toString());
  const Counted counted(*state_->counters, state_->shared.get(), Op::all_reduce,
                        all_reduce_bytes(x, rank(), size()));
  if (!symmetric) return std::make_unique<SumByCall>(x, state_->counters, state_->shared, state_->backend);
  const base::Range own = base::Split::even("message", x.numel(), size()).range(rank());
  return std::make_unique<ExposedTerms>(x, own, ++state_->begun_sums, state_->counters, state_->shared,
                                        size());
}

}  // namespace shardwise::comm
