// ATen's FlashAttention on the fake device.
#pragma once
#include <torch/library.h>

namespace shardwise::fake_device {

/// Registers _flash_attention_forward and its backward, for sequences of one length without dropout, with
/// ATen's rules for GPUs: bf16 or fp16, whole packs of 8 features, query heads in groups of one size. The
/// last query attends to the last key.
void register_flash_attention(torch::Library& aten);

}  // namespace shardwise::fake_device
