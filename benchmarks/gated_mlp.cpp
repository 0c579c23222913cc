// One rank of the gated-MLP benchmark: forward and backward of 4096 × 11008, three matrices, 16 sequences of
// 128.
//
//   bench_gated_mlp fp32|bf16 [sp|tp]
#include <ATen/ops/randn.h>

#include "benchmarks/worker.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/nn/mlp.h"

namespace {

using namespace shardwise;

constexpr int64_t kHidden = 4096, kFfn = 11008, kLength = 128, kBatch = 16;

template <nn::ResidualStream Stream>
void run(const comm::Group& group, at::ScalarType dtype) {
  const auto ffn = base::Split::even("ffn", kFfn, group.size());
  nn::GatedMlp mlp(
      nn::ColumnParallelLinear("gate_up", {kHidden, 2 * kFfn}, {/*dim=*/0, {{ffn}, {ffn}}}, group, dtype),
      nn::RowParallelLinear("down", {kFfn, kHidden}, base::ShardRule::sharded(/*dim=*/1, ffn), group, dtype));
  nn::UsedParameters parameters;
  mlp.append_parameters(parameters);
  for (const auto& used : parameters)
    parallel::initialize_(*used.parameter, kernels::RandomKey::of(1), group);
  const nn::Step context(group, kLength);
  const int64_t rows = std::is_same_v<Stream, nn::Invariant> ? kLength : context.local_sequence().size();
  at::Tensor input = group.empty({rows, kBatch, kHidden}, dtype);
  input.copy_(at::randn({rows, kBatch, kHidden}));
  const at::Tensor x = input.requires_grad_();
  for (const auto& used : parameters) parallel::zero_grad_(*used.parameter);
  const auto step = [&] {
    const auto y = mlp(nn::Placed<Stream>(x), context).reduced(context);
    y.local().backward(input.detach());
    x.mutable_grad().reset();
  };
  bench::serve(group, step, [] { return std::string("\"loss\": 0"); });
}

}  // namespace

int main(int argc, char** argv) {
  base::keep_freed_memory();
  base::install_memory_counter();
  const comm::Group group = bench::join(launch::launch_context_from_env());
  const at::ScalarType dtype = argc > 1 && std::string(argv[1]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const bool is_sequence_parallel = argc < 3 || std::string(argv[2]) == "sp";
  is_sequence_parallel ? run<nn::Sharded<nn::kSequence>>(group, dtype) : run<nn::Invariant>(group, dtype);
}
