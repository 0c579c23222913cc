// Data and tensor parallelism over one mesh: two replicas of a small decoder, each on two ranks, share
// micro-batches and weights. Compared with one rank, in fp64.
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "shardwise/comm/mesh.h"
#include "shardwise/comm/shm/shm.h"
#include "shardwise/model/decoder.h"
#include "shardwise/parallel/data_parallel.h"
#include "shardwise/train/optimizer.h"

using shardwise::comm::Mesh;
using Stream = shardwise::nn::Sharded<shardwise::nn::kSequence>;
namespace parallel = shardwise::parallel;

constexpr int64_t s = 15, b = 4, kMicroBatches = 5;  // not a multiple of the replicas
constexpr int kSteps = 12, kDp = 2, kTp = 2;
const Mesh::Names kAll = {"dp", "tp"};

/// Returns [s + 1, b] ids: arithmetic sequences whose start and step depend on the micro-batch's number.
at::Tensor sequences(int64_t number) {
  const at::Tensor ids = at::empty({s + 1, b}, at::kLong);
  for (int64_t j = 0; j < b; ++j)
    for (int64_t i = 0; i <= s; ++i) ids[i][j] = (7 * number + 3 * j + i * (1 + (number + j) % 6)) % 23;
  return ids;
}

std::vector<double> train(const Mesh& mesh) {
  const auto &tp = mesh.group("tp"), &dp = mesh.group("dp");
  shardwise::model::DecoderWeights weights(shardwise::config::preset("tiny"), tp, at::kDouble);
  const parallel::ParamSpecs specs = weights.specs<Stream>();
  parallel::DataParallel replicas(specs, dp, parallel::Replication::shared);  // one copy of the weights
  if (replicas.sets_weights()) weights.initialize_(/*seed=*/1);
  replicas.wait_until_set();
  shardwise::train::AdamW optimizer(weights.used_parameters(), {}, replicas.updated());
  const auto own = shardwise::base::Split::even("micro-batch", kMicroBatches, dp.size()).range(dp.rank());
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    at::Tensor loss = at::empty({1}, at::kDouble).zero_();
    for (int64_t m = step * kMicroBatches + own.begin; m < step * kMicroBatches + own.end; ++m) {
      const at::Tensor ids = sequences(m);
      const auto part = shardwise::model::Decoder<Stream>(weights).loss(
          ids.narrow(0, 0, s), ids.narrow(0, 1, s), /*valid_tokens=*/s * b * kMicroBatches, {tp, s});
      part.local().backward();
      loss += part.local().detach();
    }
    parallel::sync_gradients_(specs, tp);  // what is partial over tp
    replicas.sum_gradients_();             // over dp: of the rows that this rank updates
    dp.all_reduce_(loss);
    const at::Tensor square = parallel::square_norm(specs, tp, replicas.owned(), mesh.group(kAll));
    optimizer.step_and_zero_grad_(step + 1, /*learning_rate=*/4e-3, parallel::clip_scale(square, loss, 1));
    replicas.finish_update_();  // every rank sees the new weights
    losses.push_back(loss.item<double>());
  }
  return losses;
}

int main() {
  const std::string job = "data-parallel-" + std::to_string(getpid());
  std::vector<std::vector<double>> losses(kDp * kTp);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kDp * kTp; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto connect = [&](auto& axes, auto& members) {
        const int index = std::ranges::find(members, rank) - members.begin(), size = members.size();
        return shardwise::comm::shm::connect({job + axes + std::to_string(members[0]), index, size});
      };
      losses[rank] = train({{{"dp", kDp}, {"tp", kTp}}, rank, kDp * kTp, connect, {kAll}});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const auto none = [](auto&&...) { return shardwise::comm::Group(); };
  const auto one = train({{{"dp", 1}, {"tp", 1}}, 0, 1, none, {kAll}});
  std::printf("loss of the last step: %.12f, on one rank %.12f\n", losses[0].back(), one.back());
  return std::abs(one.back() / losses[3].back() - 1) < 1e-10 && one.back() < 0.8 * one.front() ? 0 : 1;
}
