#include "shardwise/plan/saved_tensor.h"

#include <c10/util/Exception.h>

namespace shardwise::plan {

const char* text_of(SavedTensor tensor) {
  switch (tensor) {
    case SavedTensor::norm1_input:
      return "norm1 input";
    case SavedTensor::norm1_rstd:
      return "norm1 rstd";
    case SavedTensor::norm1_mean:
      return "norm1 mean";
    case SavedTensor::qkv_input:
      return "qkv input";
    case SavedTensor::latents:
      return "latents";
    case SavedTensor::normalized_latents:
      return "normalized latents";
    case SavedTensor::q:
      return "q";
    case SavedTensor::k:
      return "k";
    case SavedTensor::v:
      return "v";
    case SavedTensor::attention_output:
      return "attention output";
    case SavedTensor::attention_lse:
      return "attention lse";
    case SavedTensor::norm2_input:
      return "norm2 input";
    case SavedTensor::norm2_rstd:
      return "norm2 rstd";
    case SavedTensor::norm2_mean:
      return "norm2 mean";
    case SavedTensor::mlp_input:
      return "mlp input";
    case SavedTensor::gate_and_up:
      return "gate and up";
    case SavedTensor::up:
      return "up";
    case SavedTensor::down_input:
      return "down input";
    case SavedTensor::router_scores:
      return "router scores";
    case SavedTensor::expert_input:
      return "expert input";
    case SavedTensor::expert_gate_and_up:
      return "expert gate and up";
    case SavedTensor::expert_down_input:
      return "expert down input";
    case SavedTensor::expert_output:
      return "expert output";
    case SavedTensor::norm_input:
      return "norm input";
    case SavedTensor::norm_rstd:
      return "norm rstd";
    case SavedTensor::norm_mean:
      return "norm mean";
    case SavedTensor::head_gradient:
      return "head input gradient";
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace shardwise::plan
