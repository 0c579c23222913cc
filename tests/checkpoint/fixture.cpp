#include "tests/checkpoint/fixture.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>

#include "shardwise/model/names.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing {

using model::StoredTensor;

namespace {

using Visit = std::function<void(const std::string& name, const StoredTensor&, const at::Tensor& local)>;

/// Visits every shard of the rank with the name of its full tensor.
void for_each_shard(const RankState& rank, const Visit& visit) {
  const config::Config& config = rank.weights.config();
  for (const nn::UsedParameter& used : rank.weights.used_parameters()) {
    for (const StoredTensor& stored : model::stored_tensors(*used.parameter, config))
      visit(stored.name, stored, used.parameter->value.detach());
  }
  for (const auto& [parameter, suffix, local, rows] : rank.state.tensors) {
    for (const StoredTensor& stored : model::stored_tensors(*parameter, config))
      visit(stored.name + suffix, stored, local);
  }
}

/// Corresponding views of a full tensor and of the rank's shard.
struct Part {
  at::Tensor full, local;
};

std::vector<Part> parts_of(const at::Tensor& full, const at::Tensor& local, const StoredTensor& stored,
                           int rank) {
  std::vector<Part> parts;
  for (const auto& piece : stored.held(rank)) {
    parts.push_back({full.narrow(stored.dim, piece.global_begin, piece.size),
                     stored.oriented(local).narrow(stored.dim, piece.local_begin, piece.size)});
  }
  return parts;
}

void to_phi3(config::Config& config) {
  config.model_type = "phi3";
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = false;
}

void to_gpt2(config::Config& config) {
  config.model_type = "gpt2";
  config.norm = config::Norm::layer;
  config.positions = config::Positions::learned;
  config.activation = config::Activation::gelu_tanh;
  config.hidden_size = 24;
  config.num_key_value_heads = 6;
}

}  // namespace

config::Config uneven_config(bool is_tied, const std::string& family) {
  config::Config config = small_config();
  config.hidden_size = 12;
  config.intermediate_size = 101;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  config.tie_word_embeddings = is_tied;
  if (family == "phi3") to_phi3(config);
  if (family == "gpt2") to_gpt2(config);
  return config;
}

FullState full_state(const config::Config& config, at::ScalarType dtype, uint64_t seed) {
  FullState full{{}, dtype};
  const at::ScalarType main = dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (const StoredTensor& tensor : model::stored_tensors(config, /*tp=*/1)) {
    const at::Tensor master = random_tensor(tensor.shape, ++seed, main);
    full.tensors[tensor.name] = master.to(dtype);
    full.tensors[tensor.name + ".exp_avg"] = random_tensor(tensor.shape, ++seed, main);
    full.tensors[tensor.name + ".exp_avg_sq"] = random_tensor(tensor.shape, ++seed, main);
    if (full.has_masters()) full.tensors[tensor.name + ".master"] = master;
  }
  return full;
}

RankState::RankState(const config::Config& config, const comm::Group& group, const FullState& like)
    : weights(config, group, like.dtype) {
  const at::NoGradGuard no_grad;
  const at::ScalarType main = like.dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    used.parameter->value.fill_(-1);
    const auto unset = [&] { return at::full(used.parameter->value.sizes(), -1, main); };
    if (like.has_masters()) state.tensors.push_back({used.parameter, ".master", unset()});
    state.tensors.push_back({used.parameter, ".exp_avg", unset()});
    state.tensors.push_back({used.parameter, ".exp_avg_sq", unset()});
  }
}

void fill_(RankState& rank, const FullState& full) {
  const at::NoGradGuard no_grad;
  const int r = rank.weights.group().rank();
  for_each_shard(rank, [&](const std::string& name, const StoredTensor& stored, const at::Tensor& local) {
    for (const Part& part : parts_of(full.tensors.at(name), local, stored, r)) part.local.copy_(part.full);
  });
}

std::vector<std::string> differing(const RankState& rank, const FullState& full) {
  std::vector<std::string> names;
  const int r = rank.weights.group().rank();
  for_each_shard(rank, [&](const std::string& name, const StoredTensor& stored, const at::Tensor& local) {
    for (const Part& part : parts_of(full.tensors.at(name), local, stored, r)) {
      if (!same_bits(part.local, part.full)) names.push_back(name);
    }
  });
  return names;
}

void save_full(const std::string& dir, const config::Config& config, const FullState& full, int ranks,
               int64_t step, int64_t keep) {
  on_ranks(ranks, [&](const comm::Group& group) {
    RankState rank(config, group, full);
    fill_(rank, full);
    rank.state.step = step;
    rank.state.sequences = 3 * step;
    checkpoint::save(dir, rank.weights, rank.state, keep);
  });
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace shardwise::testing
