// SwiGLU, silu(gate) · up, on a GPU, forward and backward. Launchers queue kernels in a stream: they allocate
// nothing and wait for nothing. Computes in fp32 and rounds once. Source: Shazeer 2020.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Shapes: `y` [rows, f], `gate_up` [rows, 2f] with the gate in the first f columns.
template <class T>
struct Swiglu {
  T* y;
  const T* gate_up;
  int64_t rows;
  int f;  // at least 1
};
/// Computes y = silu(gate) · up. T: float, __nv_bfloat16 or __half.
template <class T>
void swiglu(const Swiglu<T>& s, cudaStream_t stream);

/// Shapes: `d_gate_up`, `gate_up` [rows, 2f], `dy` [rows, f].
template <class T>
struct SwigluBackward {
  T* d_gate_up;
  const T *dy, *gate_up;
  int64_t rows;
  int f;  // at least 1
};
/// Computes d gate_up; recomputes the activation. T: float or __nv_bfloat16.
template <class T>
void swiglu_backward(const SwigluBackward<T>& s, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda
