// A custom layer: features compete in groups of five, by a softmax over each group. A group must stay on one
// rank: the split has a granule of five. Shards of weights, initial values and gradients follow from it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

#include "shardwise/comm/shm/shm.h"
#include "shardwise/nn/linear.h"

using at::Tensor;
using shardwise::base::ShardRule, shardwise::base::Split;
using namespace shardwise::nn;
namespace comm = shardwise::comm;

constexpr int kRanks = 3;
constexpr int64_t s = 7, b = 2, h = 16, f = 35, kGroup = 5;  // seven groups on three ranks: 3, 2 and 2

struct CompetingMlp {
  Split features;
  ColumnParallelLinear up;
  RowParallelLinear down;

  explicit CompetingMlp(const comm::Group& group)
      : features(Split::even("competing features", f, group.size(), /*granule=*/kGroup)),
        up("up", {h, f}, ShardRule::sharded(/*dim=*/0, features), group, at::kFloat),
        down("down", {f, h}, ShardRule::sharded(/*dim=*/1, features), group, at::kFloat) {
    for (const auto& parameter : {up.weight(), down.weight()}) {  // ranks draw slices of the same values
      initialize_(*parameter, shardwise::kernels::RandomKey::of(1), group);
      zero_grad_(*parameter);
    }
  }

  template <ResidualStream Stream>  // TP or TP+SP
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    const Tensor grouped = up(x, step).local().unflatten(-1, {-1, kGroup});
    const Placed<Sharded<kFeature>> winners(at::softmax(grouped, -1).flatten(-2));
    return x + down.to<Stream>(winners, step);
  }
};

/// Returns this rank's y and shards of the two weight gradients.
std::vector<Tensor> forward_backward(const CompetingMlp& mlp, const Tensor& x, const comm::Group& group) {
  const auto y = mlp(Placed<Invariant>(x.detach().requires_grad_()), Step(group, s));
  y.local().square().sum().backward();
  return {y.local().detach(), mlp.up.weight()->main_grad, mlp.down.weight()->main_grad};
}

/// Returns the largest relative error of a rank's tensors against those of a group of one.
double error(const std::vector<Tensor>& local, const std::vector<Tensor>& full, const auto& columns) {
  const auto distance = [](Tensor a, Tensor b) { return ((a - b).norm() / b.norm()).item<double>(); };
  return std::max({distance(local[0], full[0]),
                   distance(local[1], full[1].slice(0, columns.begin, columns.end)),
                   distance(local[2], full[2].slice(1, columns.begin, columns.end))});
}

int main() {
  const Tensor x = at::randn({s, b, h});
  const std::vector<Tensor> full = forward_backward(CompetingMlp(comm::Group()), x, comm::Group());
  const std::string job = "custom-split-" + std::to_string(getpid());
  double errors[kRanks] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const comm::Group group = comm::shm::connect({job, rank, kRanks});
      const CompetingMlp mlp(group);
      const auto columns = mlp.features.range(rank);
      errors[rank] = error(forward_backward(mlp, x, group), full, columns);
      std::printf("rank %d: features %2ld to %2ld, %ld groups; largest error against one rank %.0e\n", rank,
                  columns.begin, columns.end - 1, columns.size() / kGroup, errors[rank]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return *std::max_element(errors, errors + kRanks) < 1e-5 ? 0 : 1;
}
