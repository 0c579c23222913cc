#include "shardwise/parallel/gradient_sync.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/square_sum.h"
#include "shardwise/parallel/replicas.h"

namespace shardwise::parallel {

using at::Tensor;
using base::ShardRule;

namespace {

/// A gradient, or a slice of one, that must be summed over tp.
struct PartialGradient {
  Tensor local;                // a view of main_grad; empty along `dim` if this rank does not hold it
  std::vector<int64_t> shape;  // of the sum
  int64_t dim;

  int64_t numel() const {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    return numel;
  }
};

/// Appends the KV heads that several ranks hold; a rank that does not hold one contributes zeros.
void append_replicas(const Parameter& parameter, int rank, std::vector<PartialGradient>& partials) {
  const int64_t dim = parameter.rule.dim;
  for (const ReplicatedSlice& slice : replicated_slices(parameter.rule, rank)) {
    std::vector<int64_t> shape = parameter.global_shape;
    shape[dim] = slice.size;
    const Tensor local = parameter.main_grad.narrow(dim, slice.local_begin, slice.is_held ? slice.size : 0);
    partials.push_back({local, std::move(shape), dim});
  }
}

std::vector<PartialGradient> gradients_to_sum(const ParamSpecs& specs, int rank) {
  std::vector<PartialGradient> partials;
  for (const ParamSpec& spec : specs) {
    const Parameter& parameter = *spec.parameter;
    if (!parameter.main_grad.defined()) continue;
    const GradientKind kind = spec.gradient_over("tp");
    if (kind == GradientKind::partial) {
      partials.push_back({parameter.main_grad, parameter.global_shape, /*dim=*/0});
    } else if (kind == GradientKind::sharded) {
      append_replicas(parameter, rank, partials);
    }
  }
  return partials;
}

/// Calls visit(local gradient, its slot in the flat buffer) for each gradient.
template <class Visit>
void for_each_slot(const std::vector<PartialGradient>& partials, const Tensor& flat, const Visit& visit) {
  int64_t offset = 0;
  for (const PartialGradient& partial : partials) {
    const Tensor full = flat.narrow(0, offset, partial.numel()).view(partial.shape);
    visit(partial.local, full.narrow(partial.dim, 0, partial.local.size(partial.dim)));
    offset += partial.numel();
  }
}

/// Combines two values of Σ|g|^p, or two maxima. NaN and Inf propagate.
double combined(NormOrder norm, double a, double b) {
  if (norm != NormOrder::inf) return a + b;
  return std::isnan(a) || a > b ? a : b;  // std::max would lose a NaN
}

/// linalg_vector_norm copies its input to fp64; chunks of this many elements keep the copy in cache.
constexpr int64_t kChunk = int64_t{1} << 14;

/// Σ|g|^p over all elements of `gradient`, or their maximum.
double unrooted_norm(const Tensor& gradient, NormOrder norm) {
  if (gradient.numel() == 0) return 0;
  const Tensor flat = gradient.contiguous().view(-1);
  if (norm == NormOrder::two) return kernels::square_sum(flat);
  const double order = norm == NormOrder::one ? 1 : INFINITY;
  double total = 0;
  for (const Tensor& chunk : flat.split(kChunk)) {
    const double value =
        at::linalg_vector_norm(chunk, order, {}, /*keepdim=*/false, at::kDouble).item<double>();
    total = combined(norm, total, value);
  }
  return total;
}

/// The elements of which a rank computes a norm.
struct Counted {
  int rank;                // tensor-parallel
  const OwnedRows& owned;  // of its replica

  /// Returns the parts of the parameter's gradient that the rank counts.
  std::vector<Tensor> parts_of(const Parameter& parameter) const {
    const base::ShardRule& rule = parameter.rule;
    if (!parameter.main_grad.defined() || (rule.is_replicated() && rank != 0)) return {};
    const base::Range rows = owned.of(parameter);
    if (rule.is_replicated()) return {parameter.gradient_rows(rows)};
    std::vector<Tensor> parts;
    for (const ShardRule::Piece& piece : rule.owned_pieces(rank)) {
      const base::Range held{piece.local_begin, piece.local_begin + piece.size};
      const base::Range counted = rule.dim == 0 ? base::intersection(held, rows) : rows;
      const Tensor part = parameter.gradient_rows(counted);
      parts.push_back(rule.dim == 0 ? part : part.narrow(rule.dim, held.begin, held.size()));
    }
    return parts;
  }
};

/// Σ|g|^p over the elements that the rank counts, or their maximum.
double counted_norm(const Parameter& parameter, NormOrder norm, const Counted& counted) {
  double total = 0;
  for (const Tensor& part : counted.parts_of(parameter))
    total = combined(norm, total, unrooted_norm(part, norm));
  return total;
}

/// Computes Σ g² of the elements that the rank counts into `total`, on its device, in one launch.
void square_sum_on_device(const Tensor& total, const ParamSpecs& specs, const Counted& counted) {
  std::vector<Tensor> parts;
  for (const ParamSpec& spec : specs) {
    for (const Tensor& part : counted.parts_of(*spec.parameter)) parts.push_back(part.contiguous());
  }
  kernels::device_of("square_sum", total)->square_sum(total, parts);
}

}  // namespace

void sync_gradients_(const ParamSpecs& specs, const comm::Group& group) {
  for (const ParamSpec& spec : specs) check_backwards(*spec.parameter);
  if (group.size() == 1) return;
  const std::vector<PartialGradient> partials = gradients_to_sum(specs, group.rank());
  if (partials.empty()) return;
  int64_t numel = 0;
  for (const PartialGradient& partial : partials) numel += partial.numel();
  Tensor flat = group.empty({numel}, partials[0].local.scalar_type());
  flat.zero_();
  for_each_slot(partials, flat, [](const Tensor& local, const Tensor& slot) { slot.copy_(local); });
  group.all_reduce_(flat);
  for_each_slot(partials, flat, [](const Tensor& local, const Tensor& slot) { local.copy_(slot); });
}

namespace {

/// Returns Σ|g|^p over the ranks of `group`, or the maximum; [1] fp64 on the group's device.
Tensor unrooted_norm(const ParamSpecs& specs, NormOrder norm, const Counted& counted,
                     const comm::Group& group) {
  Tensor total = group.empty({1}, at::kDouble);
  if (norm == NormOrder::two && !total.is_cpu()) {
    square_sum_on_device(total, specs, counted);
  } else {
    double local = 0;
    for (const ParamSpec& spec : specs)
      local = combined(norm, local, counted_norm(*spec.parameter, norm, counted));
    total.fill_(local);
  }
  group.all_reduce_(total, norm == NormOrder::inf ? comm::Reduce::max : comm::Reduce::sum);
  return total;
}

}  // namespace

double gradient_norm(const ParamSpecs& specs, NormOrder norm, const comm::Group& group) {
  const double sum = unrooted_norm(specs, norm, {group.rank(), {}}, group).item<double>();
  return norm == NormOrder::two ? std::sqrt(sum) : sum;
}

Tensor synced_square_norm_(const ParamSpecs& specs, const comm::Group& group) {
  base::enter_part("");
  sync_gradients_(specs, group);
  return square_norm(specs, group, {}, group);
}

Tensor square_norm(const ParamSpecs& specs, const comm::Group& group, const OwnedRows& owned,
                   const comm::Group& world) {
  return unrooted_norm(specs, NormOrder::two, {group.rank(), owned}, world);
}

double synced_norm_(const ParamSpecs& specs, const comm::Group& group) {
  return std::sqrt(synced_square_norm_(specs, group).item<double>());
}

double clip_scale(double norm, double max_norm) {
  const double scale = max_norm / (norm + 1e-6);
  return scale < 1 ? scale : 1;
}

Tensor clip_scale(const Tensor& square_norm, const Tensor& loss, double max_norm) {
  if (const auto* device = kernels::device_of("clip_scale", square_norm, loss)) {
    Tensor scale = at::empty({1}, square_norm.options().dtype(at::kFloat));
    device->clip_scale(scale, square_norm, loss, max_norm);
    return scale;
  }
  const double norm = std::sqrt(square_norm.item<double>());
  const bool is_finite = std::isfinite(norm) && std::isfinite(loss.item<double>());
  const double scale = max_norm > 0 ? clip_scale(norm, max_norm) : 1;
  return at::full({1}, is_finite ? scale : NAN, square_norm.options());
}

void clip_gradients_(const ParamSpecs& specs, double norm, double max_norm) {
  const double scale = clip_scale(norm, max_norm);
  if (scale == 1) return;
  for (const ParamSpec& spec : specs) {
    if (spec.parameter->main_grad.defined()) spec.parameter->main_grad.mul_(scale);
  }
}

}  // namespace shardwise::parallel
