// Full recomputation (activation checkpointing): a sequence of layers saves only its input, and backward runs
// its forward again.
//
// The layers must return the same bits on every run; dropout's counter-based masks do. The collectives of the
// second forward run inside backward, in the same order on every rank. The backward that follows
// immediately releases the shards that these collectives share.
#pragma once
#include <functional>

#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

namespace detail {
using Forward = std::function<at::Tensor(const at::Tensor& x, OutputUse use)>;
at::Tensor recomputed(const at::Tensor& x, bool is_trained, Forward forward);
}  // namespace detail

/// Runs `forward` and recomputes it in backward. `is_trained`: whether any parameter in `forward` is trained.
/// Forward: forward(x, OutputUse::needed).
/// Backward: forward(x, OutputUse::discarded), then its backward; with OutputUse::discarded the last product
/// neither multiplies nor communicates.
/// Saved: x. `forward` must capture by value, because it is stored until the loss is released.
/// Source: Chen et al. 2016; Korthikanti et al. 2022 §5.
template <ResidualStream Stream, class Layers>
Placed<Stream> recomputed(const Placed<Stream>& x, bool is_trained, Layers forward) {
  return Placed<Stream>(
      detail::recomputed(x.local(), is_trained, [forward](const at::Tensor& input, OutputUse use) {
        return forward(Placed<Stream>(input), use).local();
      }));
}

}  // namespace shardwise::parallel
