// The local parts of vocab-parallel cross-entropy on a GPU, for one vocabulary shard (cross_entropy.h).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// The logits of n tokens. Shapes: `logits` [n, v], `labels` [n]; the shard has the ids from `begin` on.
template <class T>
struct Logits {
  const T* logits;
  const int64_t* labels;
  int64_t n;
  int v;  // may be 0
  int64_t begin;
};

/// Computes for each token, reading its logits once: the largest logit, −inf if v is 0; Σ exp(logit −
/// origin), where the origin is the largest logit, or 0 if that is infinite; the target's logit, or 0 if
/// another shard has it; and, if `terms` is 4, Σ (logit − origin). Shapes: `out` [terms, n]. T: float or
/// __nv_bfloat16.
template <class T>
void loss_terms(float* out, int terms, const Logits<T>& logits, cudaStream_t stream);

/// Computes log Σ exp(logit − max) over the vocabulary, where max is a token's largest logit of all shards.
/// Shapes: `out` [n]; `terms` [shards, terms_of_shard, n], the loss_terms of each shard.
void log_sums(float* out, const float* terms, int shards, int terms_of_shard, int64_t n, cudaStream_t stream);

/// Replaces logits by their gradient: (softmax · (1 + 2·z_loss·lse) − [label] · label_weight − class_weight)
/// · scale; by zero in rows whose label is `ignore_index`. Shapes: `logits` [n, v], `labels` and `lse` [n].
template <class T>
struct CrossEntropyBackward {
  T* logits;
  const int64_t* labels;
  const float* lse;  // log Σ exp(logit) over the vocabulary
  int64_t n;
  int v;
  int64_t begin;
  int64_t ignore_index;
  float scale, z_loss;
  float label_weight;  // 1 − label smoothing
  float class_weight;  // label smoothing / size of the vocabulary
};
/// T: float or __nv_bfloat16.
template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& backward, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda
