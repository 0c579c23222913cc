// A variant of layers with the same call interface, for the parts of a block that differ between models.
#pragma once
#include <concepts>
#include <utility>
#include <variant>

#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// One of `Layers`, chosen when the model is built.
template <class... Layers>
class OneOf {
 public:
  /// Stores `layer`.
  template <class Layer>
  requires(std::same_as<Layer, Layers> || ...) OneOf(Layer layer) : layer_(std::move(layer)) {}

  /// Calls the layer. `x`: a Placed or a DeferredReduction. `more`: the layer's further arguments.
  template <class X, class... More>
  requires(std::invocable<const Layers&, X, const Step&, const More&...>&&...) auto operator()(
      X&& x, const Step& step, const More&... more) const {
    return std::visit([&](const auto& layer) { return layer(std::forward<X>(x), step, more...); }, layer_);
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    std::visit([&](const auto& layer) { layer.append_parameters(parameters); }, layer_);
  }

 private:
  std::variant<Layers...> layer_;
};

}  // namespace shardwise::nn
