// Weights that replicas split and gather part by part.
#include "shardwise/parallel/sharded_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "tests/comm/threads.h"
#include "tests/parallel/late_backend.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace shardwise::parallel::sharded_weights_test {
namespace {

using at::Tensor;
using testing::same_bits;

constexpr size_t kParts = 5;

/// Five parts of parameters of uneven sizes; one parameter of the third is frozen, and all of the fourth.
ParameterParts new_parts(bool is_first_tied) {
  ParameterParts parts{.parts = {}, .is_first_tied = is_first_tied};
  for (size_t part = 0; part < kParts; ++part) {
    ParamSpecs& specs = parts.parts.emplace_back();
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{3 + int64_t(part), 2}, {5}, {1, 1 + int64_t(part)}}) {
      const ParameterPtr parameter =
          make_parameter("part " + std::to_string(part), shape, base::ShardRule::replicated(),
                         Init::constant(0), comm::Group(), at::kFloat);
      if (part == 3 || (part == 2 && shape.size() == 1)) freeze_(*parameter);
      specs.push_back(ParamSpec::over_tp(parameter, GradientKind::invariant));
    }
  }
  return parts;
}

/// The weights of a parameter in step `step`; the trained ones change.
Tensor expected_of(const Parameter& parameter, size_t part, size_t index, int step) {
  const float first = static_cast<float>(100 * part + 10 * index) + (parameter.is_frozen() ? 0 : step * 1e3f);
  return at::arange(parameter.value.numel(), at::kFloat).add(first).view(parameter.value.sizes());
}

void for_each(const ParameterParts& parts, const auto& visit) {
  for (size_t part = 0; part < kParts; ++part)
    for (size_t i = 0; i < parts.parts[part].size(); ++i) visit(*parts.parts[part][i].parameter, part, i);
}

void expect_part(const ParameterParts& parts, size_t part, int step) {
  for_each(parts, [&](const Parameter& parameter, size_t of, size_t index) {
    if (of == part)
      EXPECT_TRUE(same_bits(parameter.value.detach(), expected_of(parameter, of, index, step)))
          << "part " << part << " parameter " << index << " step " << step;
  });
}

/// Reads parts as two forwards and backwards do, and after an update again, on ranks of `group`.
void run(const comm::Group& group, bool is_first_tied) {
  const ParameterParts parts = new_parts(is_first_tied);
  ShardedWeights weights(parts, OwnedRows(parts.parts, group), group);
  for_each(parts, [&](Parameter& parameter, size_t part, size_t index) {
    parameter.value.detach().copy_(expected_of(parameter, part, index, 0));
    weights.keep_owned_(parameter);
  });
  for (int step = 0; step < 2; ++step) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (size_t part = 0; part < kParts; ++part) {
        weights.read_for_forward_(part);
        expect_part(parts, part, step);
        if (is_first_tied && part > 0) expect_part(parts, 0, step);
      }
      for (size_t part = kParts - 2; part > 0; --part) {
        weights.read_for_backward_(part);
        expect_part(parts, part, step);
      }
    }
    for_each(parts, [&](Parameter& parameter, size_t, size_t) {
      if (!parameter.is_frozen()) parameter.owned_value.add_(1e3f);
    });
    weights.forget_();
  }
}

TEST(ShardedWeights, AreThoseOfThePartThatIsRead) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const bool is_first_tied : {false, true}) {
      testing::on_ranks(ranks, [&](const comm::Group& group) { run(group, is_first_tied); });
      testing::on_ranks(
          ranks, [&](const comm::Group& group) { run(group.without_symmetric_heap(), is_first_tied); });
    }
  }
}

/// A part that is gathered while another is used arrives late.
TEST(ShardedWeights, WaitForPartsThatAreGatheredEarly) {
  for (const int ranks : {2, 3}) {
    testing::on_threads(ranks, [&](int rank, const std::string& job) {
      const comm::Group group = testing::late_group(job, rank, ranks);
      for (const bool is_first_tied : {false, true}) run(group, is_first_tied);
      const ParameterParts parts = new_parts(/*is_first_tied=*/false);
      ShardedWeights weights(parts, OwnedRows(parts.parts, group), group);
      const auto calls = [&] { return group.counters()[comm::Op::all_gather].calls; };
      const int64_t before = calls();
      weights.read_for_forward_(0);
      EXPECT_EQ(calls() - before, 2) << "the next part is in flight";
      weights.read_for_forward_(1);
      EXPECT_EQ(calls() - before, 4) << "trained and frozen weights of the next part are in flight";
      for (size_t part = 2; part < kParts; ++part) weights.read_for_forward_(part);
    });
  }
}

}  // namespace
}  // namespace shardwise::parallel::sharded_weights_test
