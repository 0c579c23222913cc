// Times the attention core alone: 16 heads of 64, one sequence, forward and backward, the best of 30 runs
// each.
//
//   bench_attention fp32|bf16 S [WINDOW [P]]      WINDOW 0: none; P: attention dropout
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

#include "shardwise/base/clock.h"
#include "shardwise/kernels/attention.h"

namespace {

using namespace shardwise;

constexpr int64_t kHeads = 16, kHeadDim = 64;
constexpr int kRuns = 30;

kernels::AttentionOptions options_of(int64_t window, double p) {
  kernels::AttentionOptions options;
  options.kv_of_head.resize(kHeads);
  std::iota(options.kv_of_head.begin(), options.kv_of_head.end(), 0);
  if (window > 0) options.window = window;
  options.dropout = {p, kernels::RandomKey::of(1), 0, kHeads};
  return options;
}

template <class F>
double best_ms(F f) {
  double best = INFINITY;
  for (int i = 0; i < kRuns; ++i) {
    const base::Stopwatch watch;
    f();
    best = std::min(best, watch.milliseconds());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("usage: bench_attention fp32|bf16 S [WINDOW [P]]\n", stderr), 2;
  at::set_num_threads(1);
  const at::ScalarType dtype = std::string(argv[1]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const int64_t s = std::stol(argv[2]);
  const auto options = options_of(argc > 3 ? std::stol(argv[3]) : 0, argc > 4 ? std::stod(argv[4]) : 0);
  const auto heads = [&] { return at::randn({1, kHeads, s, kHeadDim}, dtype); };
  const kernels::Qkv qkv = {heads(), heads(), heads()};
  const at::Tensor d_out = at::randn({s, 1, kHeads * kHeadDim}, dtype);
  const kernels::AttentionResult result = kernels::attention(qkv, options);
  const double forward = best_ms([&] { kernels::attention(qkv, options); });
  const double backward = best_ms([&] { kernels::attention_backward(d_out, qkv, result, options); });
  std::printf("forward %.2f ms, backward %.2f ms\n", forward, backward);
  return 0;
}
