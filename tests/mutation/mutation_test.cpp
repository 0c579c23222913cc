// Would the checks notice? Turns on one deliberate fault after another (base/mutation.h) and runs a few of
// the tests' own comparisons: with none they must all pass, with any at least one must not.
#include "shardwise/base/mutation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>

#include "shardwise/comm/mesh.h"
#include "shardwise/comm/shm/shm.h"
#include "tests/support/grid.h"
#include "tests/support/ranks.h"
#include "tests/support/reference_optimizer.h"

namespace shardwise::testing {
namespace {

using base::Mutation;

struct Named {
  Mutation mutation;
  const char* name;
};

#define NAMED(mutation)           \
  Named {                         \
    Mutation::mutation, #mutation \
  }
constexpr std::array kMutations = {
    NAMED(drop_f_backward),        NAMED(drop_f_star),           NAMED(double_f_star),
    NAMED(bias_before_reduction),  NAMED(permute_gathered_rows), NAMED(slice_instead_of_reduce),
    NAMED(forget_norm_sync),       NAMED(forget_kv_replicas),    NAMED(count_replicas_twice),
    NAMED(reuse_random_key),       NAMED(kv_head_modulo),        NAMED(local_vocab_max),
    NAMED(mean_over_local_tokens), NAMED(rotary_local_position), NAMED(swap_group),
    NAMED(gather_stale_shard)};
#undef NAMED
static_assert(kMutations.size() == static_cast<size_t>(Mutation::gather_stale_shard),
              "a mutation is not tried");

/// The parts of one compared step: a fault shows in some of them.
enum Part { loss, input, gradients, replicas, norm, error };
constexpr const char* kParts[] = {"loss", "input", "gradients", "replicas", "norm", "error"};
using Caught = std::array<bool, std::size(kParts)>;

Part part_of(const Distance& distance) {
  return distance.what == kLoss       ? loss
         : distance.what == kInput    ? input
         : distance.what == kReplicas ? replicas
                                      : gradients;
}

// Six query and three KV heads on two ranks share a KV head; biases are on for a vocabulary of 17 with an ffn
// of 32. Six positions divide by two and three ranks, so that no shape gives a fault away; seven do not.
std::vector<Prepared> prepared() {
  std::vector<Prepared> prepared;
  for (const int64_t sequence : {6, 7}) {
    prepared.push_back(prepare({{"6 over 3", 6, 3}, 17, sequence, 32, 0.1, /*is_tied=*/false}, at::kDouble));
  }
  return prepared;
}

bool is_off(double actual, double expected) {
  return !(std::abs(actual - expected) <= 1e-10 * std::abs(expected));
}

Caught check_on_rank(const Prepared& prepared, const Way& way, const comm::Group& group, Board& board) {
  Caught caught{};
  for (const Distance& distance : distances(prepared, way, group, board)) {
    if (!(distance.error <= 1e-10)) caught[part_of(distance)] = true;
  }
  model::DecoderWeights weights(prepared.problem.config(), group, at::kDouble);
  load_slices_(weights, prepared.weights);
  zero_gradients_(weights);
  const nn::Step step =
      make_step(group, way.path, prepared.problem.sequence, prepared.key, prepared.problem.dropout);
  forward_backward(weights, way.stream, prepared.batch, step);
  const parallel::ParamSpecs specs = specs_of(weights, way.stream);
  parallel::sync_gradients_(specs, group);
  const double actual = parallel::gradient_norm(specs, parallel::Norm::two, group);
  caught[norm] = is_off(actual, reference_norm(prepared.expected.gradients, 2));
  return caught;
}

Caught check(const Prepared& prepared, const Way& way, int ranks) {
  Caught caught{};
  std::mutex mutex;
  Board board(ranks);
  try {
    on_ranks(ranks, [&](const comm::Group& group) {
      const Caught own = check_on_rank(prepared, way, group, board);
      const std::lock_guard lock(mutex);
      for (size_t part = 0; part < own.size(); ++part) caught[part] |= own[part];
    });
  } catch (const std::exception&) {
    caught[error] = true;
  }
  return caught;
}

// Two replicas of two ranks each, every replica with a problem of its own: a rank that joins the wrong group
// meets another model's numbers.
Caught check_on_mesh(const std::vector<Prepared>& prepared, const Way& way) {
  static std::atomic<int> jobs{0};
  const std::string job = "mutation-mesh-" + std::to_string(getpid()) + "-" + std::to_string(jobs++);
  Caught caught{};
  std::mutex mutex;
  std::array<Board, 2> boards{Board(2), Board(2)};
  try {
    on_ranks(4, [&](const comm::Group& world) {
      const auto connect = [&](const std::string& axis, const std::vector<int>& ranks) {
        const auto own = std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin();
        const std::string name = job + axis + std::to_string(ranks.front());
        return comm::shm::connect({name, static_cast<int>(own), static_cast<int>(ranks.size())});
      };
      comm::Mesh mesh({{"dp", 2}, {"tp", 2}}, world.rank(), world.size(), connect);
      const auto replica = static_cast<size_t>(mesh.coordinate("dp"));
      const Caught own = check_on_rank(prepared.at(replica), way, mesh.group("tp"), boards.at(replica));
      const std::lock_guard lock(mutex);
      for (size_t part = 0; part < own.size(); ++part) caught[part] |= own[part];
    });
  } catch (const std::exception&) {
    caught[error] = true;
  }
  return caught;
}

// What each part noticed over all ways to split the models on two and on three ranks.
Caught check_all(const std::vector<Prepared>& prepared) {
  Caught caught{};
  for (const Prepared& each : prepared) {
    for (const int ranks : {2, 3}) {
      for (const Way& way : ways()) {
        const Caught one = check(each, way, ranks);
        for (size_t part = 0; part < one.size(); ++part) caught[part] |= one[part];
      }
    }
  }
  const Mutation active = base::active_mutation;
  if (active != Mutation::none && active != Mutation::swap_group) return caught;
  for (const Way& way : ways()) {  // meeting anew costs more than the step: only where groups can differ
    const Caught one = check_on_mesh(prepared, way);
    for (size_t part = 0; part < one.size(); ++part) caught[part] |= one[part];
  }
  return caught;
}

void print(const char* name, const Caught& caught) {
  std::printf("%-24s", name);
  for (size_t part = 0; part < caught.size(); ++part) std::printf(" %-9s", caught[part] ? "caught" : ".");
  std::printf("\n");
}

TEST(Mutation, EveryFaultIsCaughtAndNoneIsSeenWhereThereIsNone) {
  at::set_num_threads(1);
  const std::vector<Prepared> problems = prepared();
  std::printf("%-24s", "fault");
  for (const char* part : kParts) std::printf(" %-9s", part);
  std::printf("\n");
  const Caught without = check_all(problems);
  print("none", without);
  EXPECT_EQ(without, Caught{});
  for (const auto& [mutation, name] : kMutations) {
    base::active_mutation = mutation;
    const Caught caught = check_all(problems);
    base::active_mutation = Mutation::none;
    print(name, caught);
    EXPECT_NE(caught, Caught{}) << name << " survives";
  }
}

}  // namespace
}  // namespace shardwise::testing
