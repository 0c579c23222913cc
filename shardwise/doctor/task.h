// What the doctor computes, and in which ways: the same micro-batch each time, so that only the way differs.
#pragma once
#include <string>
#include <vector>

#include "shardwise/nn/loss.h"
#include "shardwise/plan/workload.h"

namespace shardwise::doctor {

/// Shapes: both [s, b] int64; labels are the ids one position on.
struct Tokens {
  at::Tensor ids, labels;
};

/// A micro-batch and what is minimized on it.
struct Task {
  std::string name;
  Tokens tokens;
  nn::LossOptions loss;
  double dropout = 0, attention_dropout = 0;
  kernels::RandomKey key = kernels::RandomKey::of(0);
};

/// The mean loss of all tokens, nothing random.
Task plain_task(const Tokens& tokens);

/// All that training can ask for: dropout of both kinds, label smoothing, z-loss, a first part of every
/// sequence without labels (as a prompt has none), and a mean over twice the tokens (as of one of two
/// micro-batches). Masks are drawn from `seed`.
Task training_task(const Tokens& tokens, uint64_t seed);

/// How a task is computed.
struct Way {
  at::ScalarType dtype;
  plan::Stream stream = plan::Stream::tp;
  plan::SaveForBackward save_for_backward = plan::SaveForBackward::shard_in_place;
  plan::Recompute recompute = plan::Recompute::none;

  bool is_exact() const { return dtype == at::kDouble; }
  /// "TP=2+SP, full recomputation".
  std::string name(int tp) const;
};

/// fp64, fp32 or bf16.
std::string dtype_name(at::ScalarType dtype);

/// What plan/ is to be asked about this task, computed so over `tp` ranks.
plan::Workload workload_of(const model::Config& config, const Task& task, const Way& way, int tp);

}  // namespace shardwise::doctor
