#include "shardwise/infer/token_forward.h"

#include <utility>

#include "shardwise/base/profile.h"

namespace shardwise::infer {

at::Tensor TokenForward::logits(const at::Tensor& ids, const std::vector<nn::CachedRows>& sequences) {
  const at::Device device = weights_.group().device();
  Size& size = sizes_.try_emplace(ids.size(0), nn::NewTokens(ids.size(0), capacity_, device)).first->second;
  nn::Step step(weights_.group(), ids.size(0));
  step.cached = sequences;
  nn::check_step(step, ids.size(1));
  size.tokens.set(ids, sequences);
  step.new_tokens = &size.tokens;
  // The first forward is not captured: it makes what later ones find, such as tables of rotary angles.
  const bool is_captured = !device.is_cpu() && stage_.stages() == 1 && std::exchange(size.was_run, true);
  if (!is_captured) return forward(size, step);
  if (!size.graph) size.graph = kernels::capture(device, [&] { size.logits = forward(size, step); });
  const base::ProfiledOp profiled("graph");
  size.graph->replay();
  return size.logits;
}

at::Tensor TokenForward::forward(const Size& size, const nn::Step& step) const {
  return stage_.logits(size.tokens.ids(), /*rows=*/{}, step);
}

}  // namespace shardwise::infer
