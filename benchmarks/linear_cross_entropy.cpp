// One rank of the benchmark of head and loss, forward and backward: 4096 tokens of Llama-3.2-1B's width, its
// vocabulary of 128256, TP+SP.
//
//   bench_linear_cross_entropy fp32|bf16
//
// peak_bytes: the most memory that a step needs beside input, weight and main gradient.
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include "benchmarks/worker.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/nn/linear_cross_entropy.h"

namespace {

using namespace shardwise;

constexpr int64_t kHidden = 2048, kVocab = 128256, kLength = 1024, kBatch = 4;

int64_t live_bytes(const comm::Group& group) {
  const auto* shared = group.symmetric_heap();
  return base::live_bytes() + (shared ? shared->live_bytes() : 0);
}

int64_t peak_bytes(const comm::Group& group) {
  const auto* shared = group.symmetric_heap();
  return base::peak_bytes() + (shared ? shared->peak_bytes() : 0);
}

void run(const comm::Group& group, at::ScalarType dtype) {
  const nn::ColumnParallelLinear head(
      "lm_head", {kHidden, kVocab},
      base::ShardRule::sharded(0, base::Split::even("vocab", kVocab, group.size())), group, dtype);
  parallel::initialize_(*head.weight(), kernels::RandomKey::of(1), group);
  parallel::zero_grad_(*head.weight());
  const nn::Step context(group, kLength);
  at::Tensor x = group.empty({context.local_sequence().size(), kBatch, kHidden}, dtype);
  x.copy_(at::randn(x.sizes())).requires_grad_();
  const at::Tensor labels =
      at::randint(0, kVocab, {kLength, kBatch}, at::make_generator<at::CPUGeneratorImpl>(7), at::kLong);
  double loss_value = 0;
  const int64_t before = live_bytes(group);
  base::reset_peak();
  const auto step = [&] {
    const nn::Placed<nn::Sharded<nn::kSequence>> input(x);
    const auto loss = nn::linear_cross_entropy(input, head, labels, double(kLength * kBatch), context);
    loss.local().backward();
    loss_value = loss.local().item<double>();
    x.mutable_grad().reset();
  };
  bench::serve(group, step, [&] {
    return fmt::format("\"loss\": {:.5f}, \"peak_bytes\": {}", loss_value, peak_bytes(group) - before);
  });
}

}  // namespace

int main(int argc, char** argv) {
  base::keep_freed_memory();
  base::install_memory_counter();
  const comm::Group group = bench::join(launch::launch_context_from_env());
  const std::string dtype = argc < 2 ? "fp32" : argv[1];
  TORCH_CHECK_VALUE(dtype == "fp32" || dtype == "bf16",
                    "bench_linear_cross_entropy: dtype must be fp32 or bf16; got ", dtype);
  run(group, dtype == "bf16" ? at::kBFloat16 : at::kFloat);
}
