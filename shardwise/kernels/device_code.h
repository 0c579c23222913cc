// What CUDA kernels use beyond CUDA itself, for nvcc.
//
// Tests compile the same kernels by g++ and run them on the CPU: then another file of this name precedes it
// (tests/support/emulator/include).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Returns the block's memory of type T: one for each T, however often a kernel asks. The emulator needs this
/// form: a `__shared__` variable would be one of each thread there.
template <class T>
__device__ T& block_shared() {
  __shared__ alignas(16) unsigned char bytes[sizeof(T)];
  return *reinterpret_cast<T*>(bytes);
}

/// Publishes what the thread has written to all threads of the device that read `flag` by load_acquire.
__device__ inline void store_release(unsigned* flag, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline unsigned load_acquire(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
/// Publishes nothing but the value.
__device__ inline void store_relaxed(unsigned* flag, unsigned value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
/// Returns a pointer that was read from memory, which the compiler then knows to be of global memory.
template <class T>
__device__ T* global(T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

/// In every loop that waits for another thread.
__device__ inline void pause() {
  __nanosleep(32);
}

/// Queues kernel(arguments...) in the stream.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, cudaStream_t stream,
            Arguments... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(static_cast<Parameters>(arguments)...);
}

}  // namespace shardwise::kernels::cuda
