// torch's allocator of the device's memory.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace shardwise::fake_device {

/// Allocates in the Memory, without waiting unless it is full. Errors: c10::OutOfMemoryError.
c10::Allocator& allocator();

/// Sets how many bytes all blocks may have together, at most Memory::kBytes; each is a multiple of 256.
void set_capacity(size_t bytes);

/// Returns the most bytes that all blocks had together.
size_t peak_bytes();

/// Gives a storage new memory of `bytes` bytes, with its contents as far as they fit.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace shardwise::fake_device
