// The local shapes at each point of a block under TP and TP+SP: the table of docs/theory.md, section 7.
#include <gtest/gtest.h>

#include <memory>

#include "shardwise/nn/block.h"
#include "tests/support/layers.h"
#include "tests/support/ranks.h"

namespace shardwise::nn::block_shapes_test {
namespace {

using at::Tensor;
using base::ShardRule, base::Split;
using comm::Group;
using testing::local_rows, testing::random_tensor;
using Shape = std::vector<int64_t>;

constexpr int64_t kSequenceLength = 7, kBatch = 2, kHidden = 5, kHeadDim = 4;
constexpr int64_t kHeads = 6, kKvHeads = 3, kFfn = 9;
const Shape kFull = {kSequenceLength, kBatch, kHidden};

/// The local sizes of a rank.
struct Share {
  int64_t positions, heads, kv_heads, ffn;
};
/// Indexed by t − 1, then by rank; written by hand.
const std::vector<Share> kShares[] = {
    {{7, 6, 3, 9}},
    {{4, 3, 2, 5}, {3, 3, 2, 4}},
    {{3, 2, 1, 3}, {2, 2, 1, 3}, {2, 2, 1, 3}},
    {{2, 2, 1, 3}, {2, 2, 1, 2}, {2, 1, 1, 2}, {1, 1, 1, 2}},
};

struct Layers {
  ColumnParallelLinear gate_up;
  RowParallelLinear down;
  BlockLayers block;  // whose MLP has these two
};

BlockLayers make_block(const Group& group, const GatedMlp& mlp) {
  const Split heads = Split::even("heads", kHeads, group.size()), kv = Split::kv_heads_of(heads, kKvHeads);
  const ShardRule qkv{0, {{heads, kHeadDim}, {kv, kHeadDim}, {kv, kHeadDim}}};
  const int64_t queries = kHeads * kHeadDim, keys = kKvHeads * kHeadDim;
  return {0,
          RMSNorm("norm1", kHidden, 1e-5, group, at::kDouble),
          {"qkv", {kHidden, queries + 2 * keys}, qkv, group, at::kDouble},
          {HeadLayout::of(heads, kv, kHeadDim, group.rank()),
           std::make_shared<Rotary>(std::vector<double>{1.0, 0.1})},
          {"out", {queries, kHidden}, ShardRule::sharded(1, heads, kHeadDim), group, at::kDouble},
          RMSNorm("norm2", kHidden, 1e-5, group, at::kDouble),
          mlp};
}

Layers make_layers(const Group& group) {
  const Split ffn = Split::even("ffn", kFfn, group.size());
  const ShardRule both{0, {{ffn}, {ffn}}};
  const ColumnParallelLinear gate_up("gate_up", {kHidden, 2 * kFfn}, both, group, at::kDouble);
  const RowParallelLinear down("down", {kFfn, kHidden}, ShardRule::sharded(1, ffn), group, at::kDouble);
  Layers layers{gate_up, down, make_block(group, GatedMlp(gate_up, down))};
  UsedParameters parameters;
  layers.block.append_parameters(parameters);
  for (const UsedParameter& used : parameters) {
    parallel::initialize_(*used.parameter, kernels::RandomKey::of(1), group);
  }
  return layers;
}

template <class Value>
Shape shape_of(const Value& x) {
  return x.local().sizes().vec();
}

template <ResidualStream Stream>
class Shapes {
 public:
  explicit Shapes(const Group& group)
      : step_(group, kSequenceLength),
        own_(kShares[group.size() - 1][group.rank()]),
        layers_(make_layers(group)),
        x_(local_rows<Stream>(random_tensor(kFull, 1), step_)) {}

  void check_attention() const {
    const auto normed = layers_.block.norm1(x_, step_);
    EXPECT_EQ(shape_of(normed), stream());
    const auto qkv = layers_.block.qkv(normed, step_);
    EXPECT_EQ(shape_of(qkv), features((own_.heads + 2 * own_.kv_heads) * kHeadDim));
    const auto heads = layers_.block.attend(qkv, step_);
    EXPECT_EQ(shape_of(heads), features(own_.heads * kHeadDim));
    EXPECT_EQ(shape_of(layers_.block.out.template to<Stream>(heads, step_)), stream());
  }

  void check_mlp() const {
    const auto gate_up = layers_.gate_up(layers_.block.norm2(x_, step_), step_);
    EXPECT_EQ(shape_of(gate_up), features(2 * own_.ffn));
    const auto inner = swiglu(gate_up);
    EXPECT_EQ(shape_of(inner), features(own_.ffn));
    EXPECT_EQ(shape_of(layers_.down.template to<Stream>(inner, step_)), stream());
  }

  /// The gathered column input and the Partial row output, which the fused products do not return.
  void check_crossings() const {
    EXPECT_EQ(shape_of(parallel::enter(x_, step_)), kFull);
    const Placed<parallel::Partial> term(random_tensor(kFull, 2));
    EXPECT_EQ(shape_of(parallel::leave<Stream>(term, step_)), stream());
  }

  void check_block() const {
    std::vector<Stage::Kind> stages;
    std::vector<Shape> shapes;
    const Observer observer = [&](const Stage& stage, const Tensor& local) {
      stages.push_back(stage.kind);
      shapes.push_back(local.sizes().vec());
    };
    auto y = run_block(layers_.block, DeferredReduction<Stream>(x_), step_, &observer);
    EXPECT_EQ(shape_of(y.reduced(step_)), stream());
    EXPECT_EQ(stages, (std::vector<Stage::Kind>{Stage::Kind::attention, Stage::Kind::mlp}));
    EXPECT_EQ(shapes, (std::vector<Shape>{stream(), stream()}));
  }

 private:
  Shape stream() const {
    if constexpr (std::is_same_v<Stream, Invariant>) return kFull;
    return {own_.positions, kBatch, kHidden};
  }
  static Shape features(int64_t local) { return {kSequenceLength, kBatch, local}; }

  Step step_;
  Share own_;
  Layers layers_;
  Placed<Stream> x_;
};

template <ResidualStream Stream>
void check(const Group& group) {
  const Shapes<Stream> shapes(group);
  shapes.check_attention();
  shapes.check_mlp();
  shapes.check_crossings();
  shapes.check_block();
}

TEST(Block, HasTheDocumentedShapesUnderTpAndSp) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      SCOPED_TRACE("rank " + std::to_string(group.rank()) + " of " + std::to_string(ranks));
      check<Invariant>(group);
      check<Sharded<kSequence>>(group);
    });
  }
}

}  // namespace
}  // namespace shardwise::nn::block_shapes_test
