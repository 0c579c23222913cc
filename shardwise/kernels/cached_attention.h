// Attention of decoding: one new token of each of several sequences, over their KV caches.
#pragma once
#include <vector>

#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/stored_heads.h"

namespace shardwise::kernels {

/// One layer's cache of a sequence, which has room for another token.
struct CachedHeads {
  StoredHeads keys, values;  // of q's dtype, or both of int8
  int64_t length;            // tokens before the new one
};

/// What a device reads of the caches of a batch, in memory that a graph (device.h) reads again. Empty: it is
/// made for the call.
struct CacheTable {
  at::Tensor on_device;  // [n, bytes], of DeviceKernels::cache_table
  int64_t capacity = 0;  // at least that of each cache; equal in all calls that a graph replays
};

/// Appends the new keys and values to the caches and attends to all of them. Several new tokens of one
/// sequence are several caches with the same tensors and ascending lengths: each token attends to those
/// before it. Shapes: `heads` q [n, a, 1, d], k and v [n, k, 1, d], of any strides → [n, 1, a·d]. Errors:
/// c10::ValueError if shapes, dtypes or options do not match, a cache is full, or there are padding or
/// dropout.
at::Tensor cached_attention(const Qkv& heads, const std::vector<CachedHeads>& caches,
                            const AttentionOptions& options, const CacheTable& table = {});

}  // namespace shardwise::kernels
