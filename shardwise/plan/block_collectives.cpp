#include "shardwise/plan/block_collectives.h"

#include <array>
#include <utility>

#include "shardwise/plan/communication.h"

namespace shardwise::plan {
namespace {

constexpr std::array kKinds = {std::pair{"all_reduce", &Collectives::all_reduce},
                               std::pair{"all_gather", &Collectives::all_gather},
                               std::pair{"reduce_scatter", &Collectives::reduce_scatter}};

std::vector<BlockCollective> collectives_of(const Workload& workload, const std::vector<Passes>& ranks,
                                            Collectives Passes::*pass) {
  std::vector<BlockCollective> called;
  for (const auto& [name, kind] : kKinds) {
    const int64_t calls = (ranks.front().*pass.*kind).calls;
    if (calls == 0) continue;
    called.push_back({workload.parallelism, pass == &Passes::backward, name, calls, {}});
    for (const Passes& rank : ranks) called.back().bytes.push_back((rank.*pass.*kind).bytes);
  }
  return called;
}

}  // namespace

std::vector<BlockCollective> block_collectives(const Workload& workload) {
  workload.validate();
  std::vector<Passes> ranks;
  for (int rank = 0; rank < workload.tp; ++rank)
    ranks.push_back(block_communication(workload, rank, /*layer=*/0));
  std::vector<BlockCollective> called = collectives_of(workload, ranks, &Passes::forward);
  for (BlockCollective& one : collectives_of(workload, ranks, &Passes::backward))
    called.push_back(std::move(one));
  return called;
}

}  // namespace shardwise::plan
