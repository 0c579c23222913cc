// One of several layers that are called alike: what a block holds where models differ.
#pragma once
#include <utility>
#include <variant>

#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// Chosen when a model is put together; each maps the stream to itself.
template <class... Layers>
class OneOf {
 public:
  template <class Layer>
  requires(std::same_as<Layer, Layers> || ...) OneOf(Layer layer) : layer_(std::move(layer)) {}

  /// `more`: what the layers take beyond the stream.
  template <ResidualStream Stream, class... More>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step, const More&... more) const {
    return std::visit([&](const auto& layer) { return layer(x, step, more...); }, layer_);
  }

  void append_roles(Roles& roles) const {
    std::visit([&](const auto& layer) { layer.append_roles(roles); }, layer_);
  }

 private:
  std::variant<Layers...> layer_;
};

}  // namespace shardwise::nn
