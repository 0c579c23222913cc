// What CUDA kernels use, for g++: stands in for the file of this name that nvcc reads.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "tests/support/emulator/builtins.h"
#include "tests/support/emulator/emulator.h"

// CUDA's header makes it nothing for g++: a variable of each thread, silently wrong.
#undef __shared__
#define __shared__ static_assert(false, "use block_shared<T>()")
#undef __launch_bounds__
#define __launch_bounds__(...)
#define threadIdx (::shardwise::emulator::place().thread)
#define blockIdx (::shardwise::emulator::place().block)
#define blockDim (::shardwise::emulator::place().threads)
#define gridDim (::shardwise::emulator::place().blocks)

[[gnu::always_inline]] inline void __syncthreads() {
  ::shardwise::emulator::barrier();
}
[[gnu::always_inline]] inline void __syncwarp(unsigned mask = ~0u) {
  ::shardwise::emulator::warp_barrier(mask);
}
template <class T>
[[gnu::always_inline]] inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return ::shardwise::emulator::shuffled(mask, value,
                                         ::shardwise::emulator::lane() / width * width + from % width, width);
}
template <class T>
[[gnu::always_inline]] inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return ::shardwise::emulator::shuffled(mask, value, ::shardwise::emulator::lane() ^ bits, width);
}
template <class T>
[[gnu::always_inline]] inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return ::shardwise::emulator::shuffled(mask, value, ::shardwise::emulator::lane() + static_cast<int>(by),
                                         width);
}
template <class T>
[[gnu::always_inline]] inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return ::shardwise::emulator::shuffled(mask, value, ::shardwise::emulator::lane() - static_cast<int>(by),
                                         width);
}
template <class T>
[[gnu::always_inline]] inline unsigned __match_any_sync(unsigned mask, T value) {
  return ::shardwise::emulator::equal_lanes(mask, value);
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
/// Returns the bytes of y·2³² + x that the four lowest digits of `selector` number.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return chosen;
}
/// Caches have no meaning here.
template <class T>
[[gnu::always_inline]] inline T __ldcs(const T* from) {
  return *from;
}

inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

/// Bits of approximate instructions differ on a GPU.
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
/// Is 0 where CUDA's is: 2^126 < |y| < 2^128.
inline float __fdividef(float x, float y) {
  return std::fabs(y) > 0x1p126f && std::isfinite(y) ? 0.0f : x / y;
}

namespace shardwise::kernels::cuda {

/// The address of each T's tag names its memory.
template <class T>
inline constexpr char kSharedTag = 0;
template <class T>
T& block_shared() {
  return *static_cast<T*>(emulator::shared_memory(sizeof(T), &kSharedTag<T>));
}

inline void store_release(unsigned* flag, unsigned value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
inline unsigned load_acquire(const unsigned* flag) {
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline void store_relaxed(unsigned* flag, unsigned value) {
  __atomic_store_n(flag, value, __ATOMIC_RELAXED);
}
template <class T>
T* global(T* pointer) {
  return pointer;
}
inline void pause() {
  emulator::pause();
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, cudaStream_t stream,
            Arguments... arguments) {
  emulator::launch(stream, blocks, threads, [=] { kernel(static_cast<Parameters>(arguments)...); });
}

}  // namespace shardwise::kernels::cuda
