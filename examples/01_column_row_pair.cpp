// A column-parallel and a row-parallel product by hand: y = silu(x Uᵀ) Dᵀ on two ranks, with U (up) sharded
// by rows and D (down) by columns.
//
// Ranks communicate only at the start and at the end: f and f* under TP, where x and y are equal on every
// rank, or g and g* under TP+SP, where they are sharded along the sequence. The type of the residual stream
// selects them. The layers of nn/ fuse these collectives with the products.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "shardwise/comm/shm/shm.h"
#include "shardwise/parallel/collectives.h"

using at::Tensor;
using shardwise::base::Range;
using shardwise::base::Split;
using shardwise::comm::Group;
using namespace shardwise::parallel;

constexpr int kRanks = 2;
constexpr int64_t s = 7, b = 2, h = 8, f = 12;  // 7 positions over 2 ranks: 4 and 3

Tensor leaf(const Tensor& values) {
  return values.detach().clone().requires_grad_();
}

struct Reference {
  Tensor x = leaf(at::randn({s, b, h})), up = leaf(at::randn({f, h})), down = leaf(at::randn({h, f}));
  Tensor y = at::linear(at::silu(at::linear(x, up)), down), dy = at::randn({s, b, h});
  Reference() { y.backward(dy); }
};

double distance(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

/// Returns the largest relative error of this rank's shards of y and of the gradients.
template <ResidualStream Stream>
double error(const Reference& reference, const Group& group) {
  const Step step(group, s);
  const Range rows = std::is_same_v<Stream, Invariant> ? Range{0, s} : step.local_sequence();
  const Range ffn = Split::even("ffn", f, kRanks).range(group.rank());
  const auto shard_s = [&](const Tensor& t) { return t.narrow(kSequence, rows.begin, rows.size()); };
  const auto shard_f = [&](const Tensor& t, int64_t d) { return t.narrow(d, ffn.begin, ffn.size()); };
  const Tensor x = leaf(shard_s(reference.x)), up = leaf(shard_f(reference.up, 0)),
               down = leaf(shard_f(reference.down, 1));

  const Placed<Replicated> in = enter(Placed<Stream>(x), step);  // f or g
  const Placed<Sharded<kFeature>> hidden(at::silu(at::linear(in.local(), up)));
  const Placed<Partial> partial(at::linear(hidden.local(), down));
  const Placed<Stream> y = leave<Stream>(partial, step);  // f* or g*; without it this does not compile

  y.local().backward(shard_s(reference.dy));
  return std::max({distance(y.local(), shard_s(reference.y)), distance(x.grad(), shard_s(reference.x.grad())),
                   distance(up.grad(), shard_f(reference.up.grad(), 0)),
                   distance(down.grad(), shard_f(reference.down.grad(), 1))});
}

int main() {
  const Reference reference;
  const std::string job = "column-row-pair-" + std::to_string(getpid());
  double worst[kRanks] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const Group group = shardwise::comm::shm::connect({job, rank, kRanks});
      const double tp = error<Invariant>(reference, group), sp = error<Sharded<kSequence>>(reference, group);
      std::printf("rank %d: largest error %.1e with f and f*, %.1e with g and g*\n", rank, tp, sp);
      worst[rank] = std::max(tp, sp);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return std::max(worst[0], worst[1]) < 1e-6 ? 0 : 1;
}
