// SwiGLU, silu(gate) · up, applied to a fused gate|up product. Source: Shazeer 2020.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns silu(gate) · up. Shapes: `gate_up` [..., 2f], with the gate in the first f columns → [..., f].
/// Errors: c10::ValueError if the last dim is odd.
at::Tensor swiglu(const at::Tensor& gate_up);

/// Returns d gate_up; recomputes the activation. Shapes: `dy` [..., f], `gate_up` [..., 2f] → [..., 2f].
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

}  // namespace shardwise::kernels
