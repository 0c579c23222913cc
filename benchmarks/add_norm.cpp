// Times the operations between two layers of a block: all_reduce (or reduce_scatter) of a row-parallel
// output, residual addition and RMSNorm, separate and fused, interleaved, with the partial sums written
// before each call.
//
//   bench_add_norm fp32|bf16 ROWS HIDDEN RANKS [sp]
//
// Prints rank 0's median microseconds of both, without the time of writing the partial sums.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <vector>

#include "benchmarks/median.h"
#include "shardwise/base/clock.h"
#include "shardwise/comm/shm/shm.h"
#include "shardwise/nn/norm.h"

namespace {

using namespace shardwise;
using nn::DeferredReduction, nn::Placed;

constexpr int kTurns = 201, kSteps = 50;

struct Arguments {
  at::ScalarType dtype;
  int64_t rows, hidden;
  int ranks;
  bool is_sequence_parallel;
};

/// Forks the ranks: rank 0 is this process, the others are its children and are killed when it exits.
comm::Group fork_ranks(int ranks) {
  const std::string job = "bench-add-norm-" + std::to_string(getpid());
  int rank = 0;
  for (int child = 1; child < ranks && rank == 0; ++child) {
    if (fork() == 0) rank = child;
  }
  if (rank > 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return comm::shm::connect({job, rank, ranks});
}

template <nn::ResidualStream Stream>
class Bench {
 public:
  Bench(const Arguments& arguments, const comm::Group& group)
      : step_(group, arguments.rows),
        norm_("norm", arguments.hidden, 1e-5, group, arguments.dtype),
        full_(at::randn({arguments.rows, 1, arguments.hidden}, arguments.dtype)),
        y_(group.empty(full_.sizes(), arguments.dtype)),
        other_y_(group.empty(full_.sizes(), arguments.dtype)),
        x_(std::is_same_v<Stream, nn::Invariant> ? full_ : local_rows()) {}

  /// Writes the partial sums to two buffers alternately, because peers may still read those of the previous
  /// call.
  parallel::PendingReduction written() {
    std::swap(y_, other_y_);
    return {Placed<nn::Partial>(y_.copy_(full_)), nullptr};
  }
  void one_by_one() { norm_(x_ + parallel::reduce<Stream>(written(), step_), step_); }
  void in_one_pass() {
    auto x = DeferredReduction<Stream>(x_) + DeferredReduction<Stream>(written());
    norm_(x, step_);
  }

  /// Returns the microseconds per step, after a barrier.
  template <class F>
  double step_us(F step) const {
    step_.group.barrier();
    const base::Stopwatch watch;
    for (int i = 0; i < kSteps; ++i) step();
    return watch.milliseconds() * 1e3 / kSteps;
  }

 private:
  at::Tensor local_rows() const {
    return full_.narrow(0, step_.local_sequence().begin, step_.local_sequence().size());
  }

  nn::Step step_;
  nn::RMSNorm norm_;
  at::Tensor full_, y_, other_y_;
  Placed<Stream> x_;
};

template <nn::ResidualStream Stream>
void run(const Arguments& arguments) {
  const comm::Group group = fork_ranks(arguments.ranks);
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  Bench<Stream> bench(arguments, group);
  std::vector<double> writing, separate, fused;
  for (int i = 0; i < kTurns; ++i) {
    writing.push_back(bench.step_us([&] { bench.written(); }));
    separate.push_back(bench.step_us([&] { bench.one_by_one(); }));
    fused.push_back(bench.step_us([&] { bench.in_one_pass(); }));
  }
  group.barrier();
  if (group.rank() != 0) return;
  const double write = median(writing), separately = median(separate) - write, pass = median(fused) - write;
  std::printf("separate %.2f us, fused %.2f us, ratio %.2f; best %.2f and %.2f; writing %.2f us\n",
              separately, pass, separately / pass, *std::ranges::min_element(separate) - write,
              *std::ranges::min_element(fused) - write, write);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return std::fputs("usage: bench_add_norm fp32|bf16 ROWS HIDDEN RANKS [sp]\n", stderr), 2;
  const Arguments arguments{std::string(argv[1]) == "bf16" ? at::kBFloat16 : at::kFloat, std::stol(argv[2]),
                            std::stol(argv[3]), std::stoi(argv[4]), argc > 5};
  if (arguments.is_sequence_parallel) {
    run<nn::Sharded<nn::kSequence>>(arguments);
  } else {
    run<nn::Invariant>(arguments);
  }
  return 0;
}
