// One of several layers that are called alike: what a block holds where models differ.
#pragma once
#include <concepts>
#include <utility>
#include <variant>

#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// Chosen when a model is put together.
template <class... Layers>
class OneOf {
 public:
  template <class Layer>
  requires(std::same_as<Layer, Layers> || ...) OneOf(Layer layer) : layer_(std::move(layer)) {}

  /// `x`: a value on the stream, or the stream itself. `more`: what the layers take beyond it.
  template <class X, class... More>
  requires(std::invocable<const Layers&, X, const Step&, const More&...>&&...) auto operator()(
      X&& x, const Step& step, const More&... more) const {
    return std::visit([&](const auto& layer) { return layer(std::forward<X>(x), step, more...); }, layer_);
  }

  void append_parameters(UsedParameters& roles) const {
    std::visit([&](const auto& layer) { layer.append_parameters(roles); }, layer_);
  }

 private:
  std::variant<Layers...> layer_;
};

}  // namespace shardwise::nn
