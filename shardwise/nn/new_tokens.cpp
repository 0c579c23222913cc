#include "shardwise/nn/new_tokens.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include "shardwise/kernels/device.h"

namespace shardwise::nn {

using at::Tensor;

std::vector<kernels::CachedHeads> caches_of(std::span<const CachedRows> sequences, int64_t layer) {
  std::vector<kernels::CachedHeads> caches;
  for (const auto& [cache, rows] : sequences) {
    const auto& [keys, values] = cache->layer(layer);
    for (int64_t row = 0; row < rows; ++row) caches.push_back({keys, values, cache->length + row});
  }
  return caches;
}

std::vector<int64_t> positions_of(std::span<const CachedRows> sequences) {
  std::vector<int64_t> positions;
  for (const auto& [cache, rows] : sequences) {
    for (int64_t row = 0; row < rows; ++row) positions.push_back(cache->length + row);
  }
  return positions;
}

NewTokens::NewTokens(int64_t n, int64_t capacity, at::Device device)
    : n_(n), capacity_(capacity), device_(device) {}

void NewTokens::set(const Tensor& ids, std::span<const CachedRows> sequences) {
  positions_ = positions_of(sequences);
  TORCH_CHECK_VALUE(ids.numel() == n_ && std::ssize(positions_) == n_, "new tokens: must be ", n_, "; got ",
                    ids.numel(), " ids and ", positions_.size(), " rows [SW0857]");
  for (const auto& [cache, rows] : sequences) {
    TORCH_CHECK_VALUE(rows <= kRowsOneByOne && cache->capacity() <= capacity_,
                      "new tokens: a sequence must have at most ", kRowsOneByOne,
                      " rows and a cache for at most ", capacity_, " tokens; got ", rows,
                      " rows and a cache for ", cache->capacity(), " [SW0858]");
  }
  layers_.clear();
  const Cache& first = *sequences.front().cache;
  first_layer_ = first.first_layer;
  for (int64_t index = 0; index < std::ssize(first.layers); ++index)
    layers_.push_back(caches_of(sequences, first_layer_ + index));
  if (device_.is_cpu()) {
    ids_ = ids;
    position_ids_ = at::tensor(positions_, at::kLong);
  } else {
    copy_to_device(ids);
  }
}

void NewTokens::copy_to_device(const Tensor& ids) {
  const kernels::DeviceKernels& kernels = kernels::kernels_on(device_);
  std::vector<Tensor> parts{ids.view(at::kByte).flatten(), at::tensor(positions_, at::kLong).view(at::kByte)};
  for (const auto& caches : layers_) parts.push_back(kernels.cache_table(caches).flatten());
  const Tensor all = at::cat(parts);
  if (!on_device_.defined()) {
    on_device_ = at::empty_like(all, device_);
    const int64_t of_ids = parts[0].numel();
    ids_ = on_device_.narrow(0, 0, of_ids).view(at::kLong).view({n_, 1});
    position_ids_ = on_device_.narrow(0, of_ids, of_ids).view(at::kLong);
    tables_ = on_device_.slice(0, 2 * of_ids).view({std::ssize(layers_), n_, -1});
  }
  on_device_.copy_(all, /*non_blocking=*/true);
}

kernels::CacheTable NewTokens::table(int64_t layer) const {
  return {tables_.defined() ? tables_[layer - first_layer_] : Tensor(), capacity_};
}

}  // namespace shardwise::nn
