// A column-parallel and a row-parallel product by hand, y = silu(x Uᵀ) Dᵀ: U (up) cut by rows over two ranks,
// D (down) by columns.
//
// Nothing is communicated between the two. On the way in and out the stream crosses by f and f* (TP, whole on
// every rank) or by g and g* (TP+SP, cut along the sequence); the types pick them. The layers of nn/ fuse all
// this.
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

struct Unsharded {
  Tensor x = leaf(at::randn({s, b, h})), up = leaf(at::randn({f, h})), down = leaf(at::randn({h, f}));
  Tensor y = at::linear(at::silu(at::linear(x, up)), down), dy = at::randn({s, b, h});
  Unsharded() { y.backward(dy); }
};

double distance(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

/// The largest error of this rank's part of y and of the gradients.
template <ResidualStream Stream>
double error(const Unsharded& whole, const Group& group) {
  const Step step(group, s);
  const Range rows = std::is_same_v<Stream, Invariant> ? Range{0, s} : step.local_sequence();
  const Range columns = Split::even("ffn", f, kRanks).range(group.rank());
  const auto own = [&](const Tensor& t) { return t.narrow(kSequence, rows.begin, rows.size()); };
  const auto cut = [&](const Tensor& t, int64_t dim) { return t.narrow(dim, columns.begin, columns.size()); };
  const Tensor x = leaf(own(whole.x)), up = leaf(cut(whole.up, 0)), down = leaf(cut(whole.down, 1));

  const Placed<Replicated> in = enter(Placed<Stream>(x), step);  // f or g
  const Placed<Sharded<kFeature>> hidden(at::silu(at::linear(in.local(), up)));
  const Placed<Partial> term(at::linear(hidden.local(), down));
  const Placed<Stream> y = leave<Stream>(term, step);  // f* or g*; `term` itself is no Placed<Stream>

  y.local().backward(own(whole.dy));
  return std::max({distance(y.local(), own(whole.y)), distance(x.grad(), own(whole.x.grad())),
                   distance(up.grad(), cut(whole.up.grad(), 0)),
                   distance(down.grad(), cut(whole.down.grad(), 1))});
}

int main() {
  const Unsharded whole;
  const std::string job = "column-row-pair-" + std::to_string(getpid());
  double worst[kRanks] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const Group group = shardwise::comm::shm::connect({job, rank, kRanks});
      const double tp = error<Invariant>(whole, group), sp = error<Sharded<kSequence>>(whole, group);
      std::printf("rank %d: largest error %.1e by f and f*, %.1e by g and g*\n", rank, tp, sp);
      worst[rank] = std::max(tp, sp);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return std::max(worst[0], worst[1]) < 1e-6 ? 0 : 1;
}
