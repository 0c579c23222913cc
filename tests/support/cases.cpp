#include "tests/support/cases.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cmath>
#include <unordered_set>

#include "tests/support/tolerance.h"

namespace shardwise::testing {

using base::ShardRule;
using model::DecoderWeights;
using model::StoredTensor;
using nn::Invariant;
using nn::kSequence;
using nn::Sharded;

namespace {

// Sees the gradient that arrives at a node: that of the node's output.
struct Capture : torch::autograd::FunctionPreHook {
  explicit Capture(at::Tensor& seen_gradient) : seen(seen_gradient) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    seen = gradients.at(0).clone();
    return gradients;
  }
  at::Tensor& seen;
};

torch::autograd::Node* find_node(torch::autograd::Node* from, const std::string& part_of_name) {
  std::vector<torch::autograd::Node*> open = {from};
  std::unordered_set<torch::autograd::Node*> seen;
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node).second) continue;
    if (node->name().find(part_of_name) != std::string::npos) return node;
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return nullptr;
}

template <nn::ResidualStream S>
StepResult run(const DecoderWeights& weights, const Batch& batch, const nn::Step& step) {
  const model::Decoder<S> model(weights);
  nn::LossOptions options(batch.valid_tokens);
  options.label_smoothing = batch.label_smoothing;
  options.z_loss = batch.z_loss;
  const at::Tensor loss = model.loss(batch.ids, batch.labels, options, step).local();
  StepResult result{loss.item<double>(), {}};
  torch::autograd::Node* lookup = find_node(loss.grad_fn().get(), "::Lookup");  // nn/embedding's
  if (lookup) lookup->add_pre_hook(std::make_unique<Capture>(result.input_gradient));
  loss.backward();
  return result;
}

}  // namespace

comm::Group on_path(const comm::Group& group, Path path) {
  const bool in_place = path == Path::symmetric || path == Path::symmetric_no_overlap;
  return in_place ? group : group.without_symmetric_heap();
}

void for_each_stored(const DecoderWeights& weights,
                     const std::function<void(size_t, const StoredTensor&)>& visit) {
  const nn::UsedParameters held = weights.held_parameters();
  for (size_t i = 0; i < held.size(); ++i) {
    for (const StoredTensor& stored : model::stored_tensors(*held[i].parameter, weights.config()))
      visit(i, stored);
  }
}

void load_slices_(const DecoderWeights& weights, const Tensors& full) {
  const at::NoGradGuard no_grad;
  for_each_stored(weights, [&](size_t i, const StoredTensor& stored) {
    const at::Tensor& from = full.at(stored.name);
    TORCH_INTERNAL_ASSERT(from.sizes() == at::IntArrayRef(stored.shape), stored.name, " has shape ",
                          from.sizes());
    const at::Tensor local = stored.oriented(weights.held_parameters()[i].parameter->value);
    for (const ShardRule::Piece& piece : stored.held(weights.group().rank())) {
      local.narrow(stored.dim, piece.local_begin, piece.size)
          .copy_(from.narrow(stored.dim, piece.global_begin, piece.size));
    }
  });
}

nn::Step make_step(const comm::Group& group, Path path, int64_t sequence, kernels::RandomKey key,
                   double dropout) {
  nn::Step step(on_path(group, path), sequence, key);
  step.save_for_backward =
      path == Path::gathered ? parallel::SaveForBackward::gathered : parallel::SaveForBackward::shard;
  const bool no_overlap = path == Path::symmetric_no_overlap || path == Path::regathered_no_overlap;
  step.overlap = no_overlap ? parallel::Overlap::off : parallel::Overlap::on;
  step.dropout = dropout;
  return step;
}

StepResult forward_backward(const DecoderWeights& weights, Stream stream, const Batch& batch,
                            const nn::Step& step) {
  return stream == Stream::tp ? run<Invariant>(weights, batch, step)
                              : run<Sharded<kSequence>>(weights, batch, step);
}

parallel::ParamSpecs specs_of(const DecoderWeights& weights, Stream stream) {
  return stream == Stream::tp ? weights.specs<Invariant>() : weights.specs<Sharded<kSequence>>();
}

void zero_gradients_(const DecoderWeights& weights) {
  for (const nn::UsedParameter& used : weights.used_parameters()) parallel::zero_grad_(*used.parameter);
}

void Board::publish(const DecoderWeights& weights) {
  auto& local = parameters_.at(weights.group().rank());
  local.clear();
  for (const nn::UsedParameter& used : weights.used_parameters()) local.push_back(used.parameter);
  weights.group().barrier();
}

at::Tensor Board::slice(int rank, size_t parameter, What what, const StoredTensor& stored,
                        const ShardRule::Piece& piece) const {
  const parallel::Parameter& held = *parameters_[rank][parameter];
  const at::Tensor local = what == What::gradient ? held.main_grad : held.value.detach();
  return stored.oriented(local).narrow(stored.dim, piece.local_begin, piece.size);
}

at::Tensor Board::full(size_t parameter, const StoredTensor& stored, What what) const {
  const at::NoGradGuard no_grad;
  const int ranks = static_cast<int>(parameters_.size());
  at::Tensor full;
  int64_t written = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const ShardRule::Piece& piece : stored.owned(rank)) {
      const at::Tensor local = slice(rank, parameter, what, stored, piece);
      if (!full.defined()) full = at::full(stored.shape, NAN, local.options());
      full.narrow(stored.dim, piece.global_begin, piece.size).copy_(local);
      written += piece.size;
    }
  }
  TORCH_CHECK(written == stored.shape.at(stored.dim), stored.name, ": owners hold ", written, " of ",
              stored.shape.at(stored.dim));
  return full;
}

int Board::differing(const at::Tensor& full, size_t parameter, const StoredTensor& stored, What what) const {
  int differing = 0;
  for (int rank = 0; rank < static_cast<int>(parameters_.size()); ++rank) {
    for (const ShardRule::Piece& piece : stored.held(rank)) {
      const at::Tensor expected = full.narrow(stored.dim, piece.global_begin, piece.size);
      differing += !same_bits(slice(rank, parameter, what, stored, piece), expected);
    }
  }
  return differing;
}

}  // namespace shardwise::testing
