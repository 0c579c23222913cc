#include "tests/support/grid.h"

#include <ATen/ops/tensor.h>

#include <cmath>

namespace shardwise::testing {
namespace {

// Llama 3's, with a context so short that the smoothing's three ranges all occur at head_dim 6.
constexpr model::RopeScaling kScaling{4, 1, 4, 64};

std::vector<int64_t> sequences(int ranks) {
  switch (ranks) {
    case 1:
      return {4, 7};
    case 2:
      return {4, 7, 1};
    case 3:
      return {6, 7, 2};
    default:
      return {4, 7, 3};
  }
}

// With one position softmax is constant, so that what only the scores depend on has no gradient.
bool has_no_gradient(const std::string& name, const Problem& problem) {
  return problem.sequence == 1 &&
         (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos);
}

Distance distance(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                  const Prepared& prepared) {
  const double size = has_no_gradient(name, prepared.problem) ? 1 : expected.norm().item<double>();
  const double off = (actual.to(at::kDouble) - expected).norm().item<double>();
  const bool is_fp64 = prepared.spread.empty();
  return {name, off / size, is_fp64 ? 1e-10 : kTail * prepared.spread.at(name) / size};
}

}  // namespace

model::Config Problem::config() const {
  model::Config config;
  config.vocab_size = vocab;
  config.hidden_size = 24;
  config.intermediate_size = ffn;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads.query;
  config.num_key_value_heads = heads.kv;
  config.head_dim = 6;
  config.max_position_embeddings = 64;
  config.norm_eps = 1e-5;
  config.tie_word_embeddings = is_tied;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = (vocab == 17) != (ffn == 101);
  config.rope_theta = 100;
  if (heads.kv == 3 || heads.kv == 2) config.rope_scaling = kScaling;
  model::validate(config);
  return config;
}

uint64_t Problem::seed() const {
  return std::hash<std::string>()(name());
}

std::string Problem::name() const {
  return std::string(heads.name) + " vocab " + std::to_string(vocab) + " sequence " +
         std::to_string(sequence) + " ffn " + std::to_string(ffn) + (dropout > 0 ? " dropout" : "") +
         (is_tied ? " tied" : "");
}

std::string Way::name() const {
  const char* paths[] = {"in place", "kept", "gathered again"};
  return std::string(stream == Stream::tp ? "TP, " : "TP+SP, ") + paths[static_cast<int>(path)];
}

std::vector<Problem> problems(int ranks) {
  const Heads all_heads[] = {
      {"MHA", 4, 4}, {"GQA", 8, 4}, {"few KV heads", 4, 2}, {"MQA", 5, 1}, {"6 over 3", 6, 3}};
  std::vector<Problem> problems;
  for (const Heads& heads : all_heads) {
    for (const int64_t vocab : {17, 127}) {
      for (const int64_t sequence : sequences(ranks)) {
        for (const int64_t ffn : {32, 101}) {
          for (const double dropout : {0.0, 0.1}) {
            for (const bool is_tied : {false, true}) {
              problems.push_back({heads, vocab, sequence, ffn, dropout, is_tied});
            }
          }
        }
      }
    }
  }
  return problems;
}

std::vector<Way> ways() {
  std::vector<Way> ways;
  for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
    for (const Path path : {Path::symmetric, Path::keep, Path::again}) ways.push_back({stream, path});
  }
  return ways;
}

Prepared prepare(const Problem& problem, at::ScalarType dtype) {
  const model::Config config = problem.config();
  const auto key = kernels::RandomKey::of(problem.seed());
  Prepared prepared{problem,
                    random_weights(config, problem.seed(), dtype),
                    random_batch(config, problem.sequence, kBatch, problem.seed()),
                    key,
                    {},
                    {}};
  Tensors exact;
  for (const auto& [name, weight] : prepared.weights) {
    exact[name] = weight.detach().to(at::kDouble).clone().requires_grad_();
  }
  const Masks masks = dropout_masks(config, problem.sequence, kBatch, problem.dropout, key, at::kDouble);
  prepared.expected = reference_step(config, exact, prepared.batch, masks);
  if (dtype != at::kDouble) {
    prepared.spread = spread_of(config, exact, prepared.batch, masks, prepared.expected, dtype);
  }
  return prepared;
}

std::vector<Distance> distances(const Prepared& prepared, const Way& way, const comm::Group& group,
                                Board& board) {
  const Problem& problem = prepared.problem;
  const ReferenceResult& expected = prepared.expected;
  const at::ScalarType dtype = prepared.weights.begin()->second.scalar_type();
  model::DecoderWeights weights(problem.config(), group, dtype);
  load_slices_(weights, prepared.weights);
  zero_gradients_(weights);
  const nn::Step step = make_step(group, way.path, problem.sequence, prepared.key, problem.dropout);
  const StepResult result = forward_backward(weights, way.stream, prepared.batch, step);
  parallel::sync_gradients_(specs_of(weights, way.stream), step.group);

  std::vector<Distance> distances = {
      distance(kLoss, at::tensor(result.loss, at::kDouble), at::tensor(expected.loss, at::kDouble), prepared),
      distance(kInput, result.input_gradient, expected.input_gradient, prepared)};
  board.publish(weights);
  size_t stored_index = 0, seen = 0;
  for_each_stored(weights, [&](size_t parameter, const model::StoredTensor& stored) {
    seen += expected.gradients.count(stored.name);
    if (static_cast<int>(stored_index++ % group.size()) != group.rank()) return;
    const at::Tensor gradient = board.whole(parameter, stored, Board::What::gradient);
    distances.push_back(distance(stored.name, gradient, expected.gradients.at(stored.name), prepared));
    const int differing = board.differing(gradient, parameter, stored, Board::What::gradient);
    distances.push_back({kReplicas, static_cast<double>(differing), 0});
  });
  TORCH_CHECK(seen == expected.gradients.size(), "the model has ", seen, " of ", expected.gradients.size(),
              " tensors");
  board.retract(group);
  return distances;
}

}  // namespace shardwise::testing
