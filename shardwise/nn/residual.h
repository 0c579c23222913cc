// The residual stream between two layers. Where nothing is kept for backward, a layer leaves the sum over the
// ranks that it adds to the stream to the norm that reads it next: one pass in place of three. Where the
// batch is in two halves, it leaves it under way, until that half has its turn again.
#pragma once
#include <ATen/core/grad_mode.h>

#include <optional>
#include <variant>

#include "shardwise/nn/module.h"
#include "shardwise/nn/observer.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::nn {

/// Whether sums are left to the norms: no gradient is recorded, and nothing stands between sum and stream.
inline bool leaves_sums(const Step& step) {
  return !at::GradMode::is_enabled() && step.dropout == 0 && step.recompute == base::Recompute::none;
}

/// Whether they are begun, and ended when the stream is read: other rows have their turn in between.
inline bool leaves_sums_under_way(const Step& step) {
  return step.turn && step.overlap == parallel::Overlap::on;
}

/// What a layer adds to the stream: a sum over the ranks, or the terms of one that is left.
template <ResidualStream Stream>
using Addend = std::variant<Placed<Stream>, parallel::RowTerms>;

/// Takes a sum that was left (a collective, once), or gives the one that was taken.
template <ResidualStream Stream>
Placed<Stream> taken(Addend<Stream> y, const Step& step) {
  if (const auto* sum = std::get_if<Placed<Stream>>(&y)) return *sum;
  return parallel::sum_terms<Stream>(std::get<parallel::RowTerms>(std::move(y)), step);
}

/// The stream: x, or x + a sum that is left.
template <ResidualStream Stream>
struct Residual {
  Placed<Stream> x;
  std::optional<parallel::RowTerms> left;

  explicit Residual(Placed<Stream> all) : x(std::move(all)) {}
  Residual(Placed<Stream> before, parallel::RowTerms terms) : x(std::move(before)), left(std::move(terms)) {}

  /// Takes the sum, once.
  Placed<Stream> taken(const Step& step) && {
    return left ? x + parallel::sum_terms<Stream>(*std::move(left), step) : std::move(x);
  }
};

/// A sum that was taken is added at once.
template <ResidualStream Stream>
Residual<Stream> operator+(const Placed<Stream>& x, Addend<Stream> y) {
  if (const auto* sum = std::get_if<Placed<Stream>>(&y)) return Residual<Stream>(x + *sum);
  return {x, std::get<parallel::RowTerms>(std::move(y))};
}

/// An observer is shown sums: with one, none is left.
template <ResidualStream Stream>
Residual<Stream> seen(const Observer* observer, const Stage& stage, Residual<Stream> x, const Step& step) {
  if (!observer || !*observer) return x;
  return Residual<Stream>(seen(observer, stage, std::move(x).taken(step)));
}

}  // namespace shardwise::nn
