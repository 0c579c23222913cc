// SwiGLU, silu(gate) · up, of a fused gate|up product. Source: Shazeer 2020.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// `gate_up` [..., 2f], the gate in the first f columns → [..., f]. Errors: c10::ValueError for an odd last
/// dim.
at::Tensor swiglu(const at::Tensor& gate_up);

/// `dy` [..., f], `gate_up` [..., 2f] → d gate_up [..., 2f]; the activation is computed again.
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

}  // namespace shardwise::kernels
