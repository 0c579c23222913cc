// One training step on 8 ranks, the size of most machines with GPUs, with the head counts of published
// models: every result against the unsharded reference, as in grid_test.cpp, whose models are smaller and
// have at most 4 ranks.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "tests/model/grid_result.h"

namespace shardwise::testing::eight_ranks_test {
namespace {

using Set = std::function<void(Case&)>;
struct Value {
  const char* name;
  Set set;
};
struct Dimension {
  const char* name;
  std::vector<Value> values;
};

/// Returns a Llama with the heads of Llama 3: 32 over 8.
Set llama(int64_t head_dim) {
  return [head_dim](Case& c) {
    c.problem.heads = {"32 over 8", 32, 8};
    c.problem.head_dim = head_dim;
    c.problem.biases = Biases::none;
  };
}

/// Sets what GPT-2 has. 8 ranks do not divide its 12 heads.
void set_gpt2(Case& c) {
  Problem& problem = c.problem;
  problem.heads = {"12", 12, 12};
  problem.head_dim = 64;
  problem.norm = config::Norm::layer;
  problem.activation = config::Activation::gelu_tanh;
  problem.positions = config::Positions::learned;
  problem.biases = Biases::all;
  problem.is_tied = true;
}

/// Returns a Llama with the heads of `heads`, which are small, and biases where Qwen2 has them.
Set small_heads(Heads heads, Biases biases) {
  return [heads, biases](Case& c) {
    c.problem.heads = heads;
    c.problem.head_dim = 4;
    c.problem.biases = biases;
  };
}

/// Returns a Qwen3 with the heads of `heads`, which are small.
Set qwen3(Heads heads) {
  return [heads](Case& c) {
    small_heads(heads, Biases::none)(c);
    c.problem.has_qk_norm = true;
  };
}

template <typename Field>
Set problem(Field Problem::*field, Field value) {
  return [field, value](Case& c) { c.problem.*field = value; };
}

const std::vector<Dimension>& dimensions() {
  static const std::vector<Dimension> all = {
      {"model",
       {{"Llama of 64", llama(64)},
        {"Llama of 128", llama(128)},
        {"GPT-2", set_gpt2},
        // Fewer KV heads than ranks, as in Qwen2 of 0.5B and 7B, and as many as query heads, as in Llama 2.
        {"14 over 2", small_heads({"14 over 2", 14, 2}, Biases::qkv)},
        {"28 over 4", small_heads({"28 over 4", 28, 4}, Biases::qkv)},
        {"32 over 32", small_heads({"32", 32, 32}, Biases::none)},
        // Qwen3 of 0.6B and 32B.
        {"16 over 8", qwen3({"16 over 8", 16, 8})},
        {"64 over 8", qwen3({"64 over 8", 64, 8})}}},
      {"stream",
       {{"TP", [](Case& c) { c.run.stream = Stream::tp; }},
        {"TP+SP", [](Case& c) { c.run.stream = Stream::tp_sp; }}}},
      {"path",
       {{"in place", [](Case& c) { c.run.path = Path::symmetric; }},
        {"gathered", [](Case& c) { c.run.path = Path::gathered; }},
        {"gathered again", [](Case& c) { c.run.path = Path::regathered; }}}},
      {"sequence",
       {{"16", problem(&Problem::sequence, int64_t{16})},
        {"13", problem(&Problem::sequence, int64_t{13})},
        {"7", problem(&Problem::sequence, int64_t{7})}}},
      {"ffn", {{"64", problem(&Problem::ffn, int64_t{64})}, {"101", problem(&Problem::ffn, int64_t{101})}}},
      {"vocab",
       {{"17", problem(&Problem::vocab, int64_t{17})}, {"127", problem(&Problem::vocab, int64_t{127})}}},
      {"dropout", {{"0", problem(&Problem::dropout, 0.0)}, {"0.1", problem(&Problem::dropout, 0.1)}}},
      {"recomputation",
       {{"none", [](Case&) {}},
        {"selective", [](Case& c) { c.run.recompute = base::Recompute::selective; }},
        {"full", [](Case& c) { c.run.recompute = base::Recompute::full; }}}},
  };
  return all;
}

Space space() {
  Space space;
  for (const Dimension& dimension : dimensions()) {
    std::vector<std::string> names;
    for (const Value& value : dimension.values) names.push_back(value.name);
    space.add(dimension.name, names);
  }
  return space;
}

Case case_of(const Combination& combination) {
  Case c;
  c.ranks = 8;
  c.problem.hidden = 64;
  for (size_t d = 0; d < combination.size(); ++d) dimensions()[d].values.at(combination[d]).set(c);
  c.name = space().name(combination);
  return c;
}

/// Compares every pair of values.
void run(at::ScalarType dtype, uint64_t seed) {
  at::set_num_threads(1);
  GridResult result;
  const std::vector<Combination> all = covering(space(), /*strength=*/2, seed);
  for (const Combination& combination : all) {
    const Case c = case_of(combination);
    EXPECT_NO_THROW(compare(c, prepare(c.problem, dtype), result)) << c.name;
  }
  result.expect_detection(dtype == at::kBFloat16 ? 0.9 : 1);
  if (dtype != at::kDouble) result.expect_shares(limits_of(dtype));
  std::printf("covered: %zu combinations on 8 ranks in %s; %s\n", all.size(), c10::toString(dtype),
              result.summary().c_str());
}

TEST(EightRanks, Fp64MatchesTheReference) {
  run(at::kDouble, /*seed=*/6);
}

TEST(EightRanks, Fp32StaysWithinItsBound) {
  run(at::kFloat, /*seed=*/8);
}

TEST(EightRanks, Bf16StaysWithinItsBound) {
  run(at::kBFloat16, /*seed=*/7);
}

}  // namespace
}  // namespace shardwise::testing::eight_ranks_test
