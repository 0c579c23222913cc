#include "shardwise/parallel/gradient_sync.h"

#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>

#include "shardwise/base/mutation.h"

namespace shardwise::parallel {

using at::Tensor;
using base::Mutation;
using base::ShardRule;

namespace {

/// A gradient, or a slice of one, that is summed over tp.
struct Term {
  Tensor term;                 // a view of main_grad
  std::vector<int64_t> shape;  // of what is summed
  int64_t dim;                 // along which the term is empty where this rank holds nothing of it

  int64_t numel() const {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    return numel;
  }
};

/// KV heads held by several ranks travel whole, zero where this rank does not hold them.
void append_replicas(const Parameter& parameter, int rank, std::vector<Term>& terms) {
  const int64_t dim = parameter.rule.dim;
  const auto pieces = parameter.rule.pieces(rank);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const base::Segment& segment = parameter.rule.segments[i];
    if (segment.split.is_partition()) continue;
    const base::Range held = segment.split.range(rank);
    std::vector<int64_t> shape = parameter.global_shape;
    shape[dim] = segment.unit;
    for (int64_t index = 0; index < segment.split.size(); ++index) {
      if (segment.split.holders(index).size() < 2) continue;
      const bool is_held = held.begin <= index && index < held.end;
      const int64_t begin = pieces[i].local_begin + (is_held ? (index - held.begin) * segment.unit : 0);
      terms.push_back({parameter.main_grad.narrow(dim, begin, is_held ? segment.unit : 0), shape, dim});
    }
  }
}

std::vector<Term> terms_to_sum(const ParamSpecs& specs, int rank) {
  std::vector<Term> terms;
  for (const ParamSpec& spec : specs) {
    const Parameter& parameter = *spec.parameter;
    if (!parameter.main_grad.defined()) continue;
    const GradientKind kind = spec.gradient_over("tp");
    const bool is_term = kind == GradientKind::partial || (kind == GradientKind::invariant &&
                                                           base::mutated(Mutation::sum_invariant_gradients));
    if (is_term && !base::mutated(Mutation::forget_norm_sync)) {
      terms.push_back({parameter.main_grad, parameter.global_shape, /*dim=*/0});
    } else if (kind == GradientKind::sharded && !base::mutated(Mutation::forget_kv_replicas)) {
      append_replicas(parameter, rank, terms);
    }
  }
  return terms;
}

/// For every term, its place in the flat buffer.
template <class Visit>
void for_each_slot(const std::vector<Term>& terms, const Tensor& flat, const Visit& visit) {
  int64_t offset = 0;
  for (const Term& term : terms) {
    const Tensor whole = flat.narrow(0, offset, term.numel()).view(term.shape);
    visit(term.term, whole.narrow(term.dim, 0, term.term.size(term.dim)));
    offset += term.numel();
  }
}

/// The sum of two parts' |g|^p, or their maximum; not finite when either is not.
double joined(Norm norm, double a, double b) {
  if (norm != Norm::inf) return a + b;
  return std::isnan(a) || a > b ? a : b;  // std::max would lose a NaN
}

/// Summing in fp64 makes an fp64 copy of what is summed: part by part it stays in cache.
constexpr int64_t kPart = int64_t{1} << 14;

/// Adds up elements that this rank owns: sum of |g|^p, or the maximum.
double owned_norm(const Tensor& gradient, Norm norm) {
  const double order = norm == Norm::one ? 1 : norm == Norm::two ? 2 : INFINITY;
  double total = 0;
  if (gradient.numel() == 0) return total;
  for (const Tensor& part : gradient.contiguous().view(-1).split(kPart)) {
    const double value =
        at::linalg_vector_norm(part, order, {}, /*keepdim=*/false, at::kDouble).item<double>();
    total = joined(norm, total, norm == Norm::two ? value * value : value);
  }
  return total;
}

double owned_norm(const ParamSpec& spec, Norm norm, int rank) {
  const Parameter& parameter = *spec.parameter;
  if (!parameter.main_grad.defined()) return 0;
  if (parameter.rule.is_replicated())
    return rank == 0 || base::mutated(Mutation::count_whole_everywhere)
               ? owned_norm(parameter.main_grad, norm)
               : 0;
  if (base::mutated(Mutation::count_replicas_twice)) return owned_norm(parameter.main_grad, norm);
  double total = 0;
  for (const ShardRule::Piece& piece : parameter.rule.owned_pieces(rank)) {
    const double part =
        owned_norm(parameter.main_grad.narrow(parameter.rule.dim, piece.local_begin, piece.size), norm);
    total = joined(norm, total, part);
  }
  return total;
}

}  // namespace

void sync_gradients_(const ParamSpecs& specs, const comm::Group& group) {
  if (group.size() == 1) return;
  const std::vector<Term> terms = terms_to_sum(specs, group.rank());
  if (terms.empty()) return;
  int64_t numel = 0;
  for (const Term& term : terms) numel += term.numel();
  Tensor flat = group.empty({numel}, terms[0].term.scalar_type());
  flat.zero_();
  for_each_slot(terms, flat, [](const Tensor& term, const Tensor& slot) { slot.copy_(term); });
  if (base::mutated(Mutation::sync_in_two)) group.all_reduce(flat);
  group.all_reduce_(flat);
  if (base::mutated(Mutation::average_gradients)) flat.div_(group.size());
  for_each_slot(terms, flat, [](const Tensor& term, const Tensor& slot) { term.copy_(slot); });
}

double gradient_norm(const ParamSpecs& specs, Norm norm, const comm::Group& group) {
  Tensor total = group.empty({1}, at::kDouble);
  double own = 0;
  for (const ParamSpec& spec : specs) {
    if (base::mutated(Mutation::norm_without_peers_cuts) && !spec.parameter->rule.is_replicated() &&
        group.rank() > 0)
      continue;
    own = joined(norm, own, owned_norm(spec, norm, group.rank()));
  }
  total.fill_(own);
  const bool is_largest = norm == Norm::inf && !base::mutated(Mutation::sum_for_largest);
  if (!base::mutated(Mutation::local_norm))
    group.all_reduce_(total, is_largest ? comm::Reduce::max : comm::Reduce::sum);
  const double sum = total.item<double>();
  return norm == Norm::two ? std::sqrt(sum) : sum;
}

double synced_norm_(const ParamSpecs& specs, const comm::Group& group) {
  if (!base::mutated(Mutation::norm_before_sync)) sync_gradients_(specs, group);
  const double norm = gradient_norm(specs, Norm::two, group);
  if (base::mutated(Mutation::norm_before_sync)) sync_gradients_(specs, group);
  return norm;
}

void clip_gradients_(const ParamSpecs& specs, double norm, double max_norm) {
  const double scale = max_norm / (norm + 1e-6);
  if (!(scale < 1)) return;
  for (const ParamSpec& spec : specs) {
    if (base::mutated(Mutation::clip_cut_only) && spec.parameter->rule.is_replicated()) continue;
    if (spec.parameter->main_grad.defined()) spec.parameter->main_grad.mul_(scale);
  }
}

}  // namespace shardwise::parallel
