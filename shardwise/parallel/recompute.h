// Full recomputation: of a stretch of layers only the input is kept, and its forward runs again in backward.
//
// The layers must give the same bits whenever they run, as dropout's counter-based masks do. The collectives
// of the second forward happen inside backward, in the same order on every rank; what they share_shard is
// dropped by the backward that follows at once.
#pragma once
#include <functional>

#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

namespace detail {
using Forward = std::function<at::Tensor(const at::Tensor& x, OutputUse use)>;
at::Tensor recomputed(const at::Tensor& x, bool is_trained, Forward forward);
}  // namespace detail

/// y = forward(x, OutputUse::needed). Backward: forward(x, OutputUse::discarded), then its backward; a
/// product that ends the stretch and is told that its value is unused neither multiplies nor communicates in
/// it. `is_trained`: whether any parameter in `forward` is. Saved: x. `forward` is kept until the loss is
/// dropped, and so is what it captures: by value. Source: Chen et al. 2016; Korthikanti et al. 2022 §5.
template <ResidualStream Stream, class Layers>
Placed<Stream> recomputed(const Placed<Stream>& x, bool is_trained, Layers forward) {
  return Placed<Stream>(
      detail::recomputed(x.local(), is_trained, [forward](const at::Tensor& input, OutputUse use) {
        return forward(Placed<Stream>(input), use).local();
      }));
}

}  // namespace shardwise::parallel
