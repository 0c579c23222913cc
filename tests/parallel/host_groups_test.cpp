// Replicas of different hosts: those of one host share one copy of the weights.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shardwise/parallel/data_parallel.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace shardwise::parallel::host_groups_test {
namespace {

using at::Tensor;
using testing::same_bits;

/// Parameters of uneven rows; the last one is frozen.
ParamSpecs new_parameters(const comm::Group& alone) {
  ParamSpecs specs;
  const auto append = [&](const char* name, std::vector<int64_t> shape) {
    const ParameterPtr parameter = make_parameter(name, std::move(shape), base::ShardRule::replicated(),
                                                  Init::constant(0), alone, at::kDouble);
    specs.push_back(ParamSpec::over_tp(parameter, GradientKind::invariant));
  };
  append("matrix", {7, 3});
  append("vector", {5});
  append("short", {1, 2});
  append("frozen", {4});
  freeze_(*specs.back().parameter);
  return specs;
}

Tensor values_of(const ParamSpecs& specs) {
  std::vector<Tensor> all;
  for (const ParamSpec& spec : specs) all.push_back(spec.parameter->value.detach().reshape({-1}));
  return at::cat(all).clone();
}

/// The groups of hosts that have no memory in common, in one machine's.
struct Hosts {
  comm::Group all;
  HostGroups groups;
};

Hosts hosts_of(const comm::Mesh& mesh) {
  return {mesh.group(comm::Mesh::Names{"across", "within"}).without_symmetric_heap(),
          {mesh.group("within"), mesh.group("across").without_symmetric_heap()}};
}

/// Adds the sum of the gradients to the rows of `replicas.updated()` and zeroes it, as an optimizer would.
void update(const ParamSpecs& specs, const DataParallel& replicas) {
  for (const ParamSpec& spec : specs) {
    const Parameter& parameter = *spec.parameter;
    if (parameter.is_frozen()) continue;
    const base::Range rows = replicas.updated().of(parameter);
    const Tensor gradient = parameter.gradient_rows(rows);
    parameter.value.detach().narrow(0, rows.begin, rows.size()).add_(gradient);
    gradient.zero_();
  }
}

/// Every rank reads the rows that all ranks have updated, and those of a host read them in one memory.
TEST(HostGroups, EveryHostHasTheRowsOfAllOwners) {
  for (const auto& [across, within] : {std::pair(2, 2), std::pair(2, 3), std::pair(3, 2), std::pair(2, 4)}) {
    const int ranks = across * within;
    SCOPED_TRACE(std::to_string(across) + " hosts of " + std::to_string(within));
    const auto make_mesh = [&](const comm::Group& world, const comm::Mesh::Connect& connect) {
      return comm::Mesh({{"across", across}, {"within", within}}, world.rank(), ranks, connect,
                        {{"across", "within"}});
    };
    testing::on_mesh(ranks, make_mesh, [&](const comm::Mesh& mesh) {
      const auto [all, groups] = hosts_of(mesh);
      const ParamSpecs specs = new_parameters(comm::Group());
      DataParallel replicas(specs, all, Replication::shared, groups);
      ASSERT_EQ(replicas.sets_weights(), groups.within.rank() == 0);
      if (replicas.sets_weights())
        for (const ParamSpec& spec : specs) spec.parameter->value.detach().fill_(100);
      replicas.wait_until_set();
      const Tensor before = values_of(specs);
      EXPECT_TRUE(same_bits(before, at::full({32}, 100, at::kDouble)));
      for (int step = 1; step <= 2; ++step) {
        for (const ParamSpec& spec : specs)
          if (!spec.parameter->is_frozen()) spec.parameter->main_grad.add_(step * (1 << mesh.rank()));
        replicas.sum_gradients_();
        all.barrier();
        update(specs, replicas);
        replicas.finish_update_();
        Tensor expected = before.clone();
        const int sum_of_steps = step * (step + 1) / 2;
        expected.narrow(0, 0, 28).add_(sum_of_steps * ((1 << ranks) - 1));
        EXPECT_TRUE(same_bits(values_of(specs), expected)) << "step " << step;
        all.barrier();  // no rank updates what others compare
      }
    });
  }
}

}  // namespace
}  // namespace shardwise::parallel::host_groups_test
