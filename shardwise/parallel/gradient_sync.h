// Gradient synchronization, norm and clipping over tp: once per optimizer step, on the main gradients.
#pragma once
#include "shardwise/parallel/owned_rows.h"

namespace shardwise::parallel {

/// Sums over tp every partial gradient and the gradients of KV heads that several ranks hold; afterward
/// replicas are equal bit for bit.
/// Cost: one all_reduce of all of these (zeros where a rank does not hold a KV head); no communication if the
/// model has no such gradients.
void sync_gradients_(const ParamSpecs& specs, const comm::Group& group);

/// Which norm: the sum of magnitudes, the Euclidean norm, or the largest magnitude.
enum class NormOrder { one, two, inf };

/// Returns the norm of the full model's gradient, the same bits on every rank. Each element is counted once,
/// on the lowest rank that holds it, and sums are fp64. Cost: one all_reduce of one element.
double gradient_norm(const ParamSpecs& specs, NormOrder norm, const comm::Group& group);

/// Synchronizes the gradients (sync_gradients_) and returns their 2-norm (gradient_norm).
double synced_norm_(const ParamSpecs& specs, const comm::Group& group);

/// Returns the square of gradient_norm's 2-norm over replicas, [1] fp64 on their device, for which the host
/// does not wait: each element is counted by its data-parallel owner on the lowest rank of `group` that holds
/// it. `world`: the ranks of all replicas. Cost: one all_reduce of one element.
at::Tensor square_norm(const ParamSpecs& specs, const comm::Group& group, const OwnedRows& owned,
                       const comm::Group& world);

/// Synchronizes the gradients and returns the square of their 2-norm, [1] fp64 on the group's device, for
/// which the host does not wait.
at::Tensor synced_square_norm_(const ParamSpecs& specs, const comm::Group& group);

/// Returns the factor that clips gradients of `norm`: max_norm / (norm + 1e-6) if that is below one, else 1,
/// as torch.nn.utils.clip_grad_norm_ does. An optimizer that takes it saves a pass over the gradients.
double clip_scale(double norm, double max_norm);

/// Returns clip_scale of √`square_norm`, or 1 if max_norm is 0; NaN if the norm or the loss is not finite.
/// Shapes: `square_norm`, `loss` [1] fp64 on one device → [1] there, fp64 on the CPU and fp32 elsewhere.
at::Tensor clip_scale(const at::Tensor& square_norm, const at::Tensor& loss, double max_norm);

/// Multiplies all gradients by clip_scale.
void clip_gradients_(const ParamSpecs& specs, double norm, double max_norm);

}  // namespace shardwise::parallel
