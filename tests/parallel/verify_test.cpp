// The comparisons of --verify over the ranks: with it every rank reports each difference, without it none.
#include "shardwise/parallel/verify.h"

#include <gtest/gtest.h>

#include "shardwise/parallel/collectives.h"
#include "shardwise/parallel/row_product.h"
#include "tests/parallel/corrupting_backend.h"
#include "tests/parallel/linear_case.h"
#include "tests/support/error_text.h"

namespace shardwise::parallel::verify_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;

constexpr int kRanks = 3;
const LinearCase kLinear{7, 5, 10};

std::string differs(const std::string& what) {
  return "verify: " + what + " must be equal on every rank; it differs from rank 0's on 1 of 3 ranks";
}

/// Three ranks, of which the last can gather other values.
struct Ranks {
  explicit Ranks(const std::string& job, const Group& shared_memory)
      : made(testing::corrupting_group(job, shared_memory.rank(), kRanks)),
        step(made.group, kLinear.sequence) {
    step.verify = Verify::on;
  }

  const Group& group() const { return made.group; }
  Tensor local_rows(const Tensor& full) const { return slice_of(full, step.sequence, 0, group().rank()); }
  LinearParameters column() const {
    const Split features = Split::even("features", kLinear.out, kRanks);
    return kLinear.parameters(ShardRule::sharded(0, features), ShardRule::sharded(0, features), group());
  }
  LinearParameters row() const {
    const Split features = Split::even("features", kLinear.in, kRanks);
    return kLinear.parameters(ShardRule::sharded(1, features), ShardRule::replicated(), group());
  }
  Tensor features_of(const Tensor& full) const {
    return slice_of(full, Split::even("features", full.size(2), kRanks), -1, group().rank());
  }

  /// Runs `call` with correct gathers, and with those of the last rank corrupted: with verification every
  /// rank reports what differs, without it none does.
  void expect_detected(const std::string& what, const std::function<void(const Step&)>& call) {
    SCOPED_TRACE(what);
    EXPECT_NO_THROW(call(step));
    made.backend->corrupts = group().rank() == kRanks - 1;
    Step unverified = step;
    unverified.verify = Verify::off;
    EXPECT_NO_THROW(call(unverified));
    EXPECT_EQ(test::error_text<c10::Error>([&] { call(step); }), differs(what));
    made.backend->corrupts = false;
  }
  /// Like expect_detected, for the backward of what `forward` returns: only its gathers are corrupted.
  void expect_detected_in_backward(const std::string& what, const Tensor& dy,
                                   const std::function<Tensor(const Step&)>& forward) {
    const bool is_last = group().rank() == kRanks - 1;
    expect_detected(what, [&](const Step& each) {
      const bool corrupts = std::exchange(made.backend->corrupts, false);
      const Tensor y = forward(each);
      made.backend->corrupts = corrupts && is_last;
      y.backward(dy);
    });
  }

  testing::CorruptingGroup made;
  Step step;
};

void on_corruptible_ranks(const std::function<void(Ranks&)>& body) {
  const std::string job = testing::new_job();
  testing::on_ranks(kRanks, [&](const Group& shared_memory) {
    Ranks ranks(job, shared_memory);
    body(ranks);
  });
}

TEST(Verify, DetectsOtherGatheredRowsOfAColumnParallelLayer) {
  on_corruptible_ranks([](Ranks& ranks) {
    const LinearParameters w = ranks.column();
    const Tensor x = ranks.local_rows(kLinear.x()).requires_grad_();
    const auto forward = [&](const Step& step) {
      return column_product(Placed<SequenceShard>(x), w, step).local();
    };
    ranks.expect_detected("a column-parallel layer's gathered input", forward);
    ranks.expect_detected_in_backward("a column-parallel layer's input, gathered again",
                                      ranks.features_of(kLinear.dy()), forward);
  });
}

TEST(Verify, DetectsOtherRowsOfRankZero) {
  on_corruptible_ranks([](Ranks& ranks) {
    const LinearParameters w = ranks.column();
    const Tensor x = ranks.local_rows(kLinear.x());
    const int64_t row = LinearCase::kBatch * kLinear.in;
    ranks.made.backend->chunk_of_rank_0 = ranks.step.sequence.range(0).size() * row;
    ranks.expect_detected("a column-parallel layer's gathered input",
                          [&](const Step& step) { column_product(Placed<SequenceShard>(x), w, step); });
  });
}

TEST(Verify, DetectsOtherGatheredGradientsOfARowParallelLayer) {
  on_corruptible_ranks([](Ranks& ranks) {
    const LinearParameters w = ranks.row();
    const Tensor x = ranks.features_of(kLinear.x()).requires_grad_();
    ranks.expect_detected_in_backward(
        "a row-parallel layer's gathered output gradient", ranks.local_rows(kLinear.dy()),
        [&](const Step& step) {
          return row_product<SequenceShard>(Placed<Sharded<kFeature>>(x), w, step).local();
        });
  });
}

TEST(Verify, DetectsOtherGatheredTensorsOfTheConjugateCollectives) {
  on_corruptible_ranks([](Ranks& ranks) {
    const Tensor shard = ranks.local_rows(kLinear.x()), partial = kLinear.x().requires_grad_();
    ranks.expect_detected("the gathered input of a tensor-parallel region",
                          [&](const Step& step) { enter(Placed<SequenceShard>(shard), step); });
    ranks.expect_detected_in_backward(
        "the gathered output gradient of a tensor-parallel region", shard,
        [&](const Step& step) { return leave<SequenceShard>(Placed<Partial>(partial), step).local(); });
  });
}

TEST(Verify, DetectsOtherInvariantTensorsOfTheConjugateCollectives) {
  on_corruptible_ranks([](Ranks& ranks) {
    const Tensor x = kLinear.x(), different = ranks.group().rank() == 1 ? x + 1e-15 : x;
    EXPECT_NO_THROW(enter(Placed<Invariant>(x), ranks.step));
    EXPECT_EQ(test::error_text<c10::Error>([&] { enter(Placed<Invariant>(different), ranks.step); }),
              differs("the input of a tensor-parallel region"));
    const Tensor partial = x.clone().requires_grad_();
    const Tensor y = leave<Invariant>(Placed<Partial>(partial), ranks.step).local();
    EXPECT_EQ(test::error_text<c10::Error>([&] { y.backward(different); }),
              differs("the output gradient of a tensor-parallel region"));
  });
}

/// A norm weight on four ranks, and two KV heads of three rows, of which each is on two ranks.
struct Replicas {
  explicit Replicas(const Group& ranks)
      : group(ranks),
        norm(make("norm", {5}, ShardRule::replicated())),
        kv(make("kv", {6, 2},
                ShardRule::sharded(0, Split::kv_heads_of(Split::even("heads", 4, ranks.size()), 2), 3))) {}

  ParamSpecs specs() const {
    return {ParamSpec::over_tp(norm, GradientKind::partial), ParamSpec::over_tp(kv, GradientKind::sharded)};
  }
  /// Changes one element of `x` on `rank`, and back by a negative `difference`.
  void change_(const Tensor& x, int rank, double difference) const {
    const at::NoGradGuard no_grad;
    if (group.rank() == rank) x.flatten()[0].add_(difference);
  }
  void expect_detected(const ParameterPtr& parameter, Held held, int rank, const std::string& error) const {
    const Tensor& x = held == Held::weights ? parameter->value : parameter->main_grad;
    const Held other = held == Held::weights ? Held::gradients : Held::weights;
    EXPECT_NO_THROW(verify_replicas(specs(), held, group));
    change_(x, rank, 0.5);
    EXPECT_EQ(test::error_text<c10::Error>([&] { verify_replicas(specs(), held, group); }), error);
    EXPECT_NO_THROW(verify_replicas(specs(), other, group));
    change_(x, rank, -0.5);
  }

  Group group;
  ParameterPtr norm, kv;

 private:
  ParameterPtr make(const std::string& name, std::vector<int64_t> shape, const ShardRule& rule) const {
    ParameterPtr parameter = make_parameter(name, shape, rule, Init::constant(0), group, at::kFloat);
    const at::NoGradGuard no_grad;
    parameter->value.fill_(1);
    zero_grad_(*parameter);
    return parameter;
  }
};

TEST(VerifyReplicas, NamesTheParameterAndTheRanks) {
  testing::on_ranks(4, [](const Group& group) {
    const Replicas replicas(group);
    const std::string rule = " must be equal on every rank that holds it; ";
    replicas.expect_detected(replicas.norm, Held::weights, 3,
                             "verify: norm" + rule + "rank 3's differs from rank 0's");
    replicas.expect_detected(replicas.norm, Held::gradients, 1,
                             "verify: norm's gradient" + rule + "rank 1's differs from rank 0's");
    replicas.expect_detected(replicas.kv, Held::weights, 3,
                             "verify: kv" + rule + "rank 3's differs from rank 2's");
    replicas.expect_detected(replicas.kv, Held::gradients, 0,
                             "verify: kv's gradient" + rule + "rank 1's differs from rank 0's");
  });
}

TEST(VerifyReplicas, CostsOneAllGather) {
  testing::on_ranks(4, [](const Group& group) {
    const Replicas replicas(group);
    const comm::Counters before = group.counters();
    verify_replicas(replicas.specs(), Held::gradients, group);
    const comm::OpCount all_gather = (group.counters() - before)[comm::Op::all_gather];
    EXPECT_EQ((group.counters() - before).total().calls, 1);
    EXPECT_EQ(all_gather.calls, 1);
    EXPECT_EQ(all_gather.bytes, 3 * 8 * (1 + 2));  // the norm's and two KV heads'
  });
}

}  // namespace
}  // namespace shardwise::parallel::verify_test
