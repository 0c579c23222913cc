#include "tests/infer/reference_weights.h"

#include <utility>
#include <vector>

namespace shardwise::testing {
namespace {

struct Rename {
  const char *from, *to;
};
constexpr Rename kOfGpt2[] = {{"transformer.h.", "model.layers."},
                              {"transformer.wte.", "model.embed_tokens."},
                              {"transformer.wpe.", "model.embed_positions."},
                              {"transformer.ln_f.", "model.norm."},
                              {".ln_1.", ".input_layernorm."},
                              {".ln_2.", ".post_attention_layernorm."},
                              {".attn.c_attn.", ".self_attn.qkv_proj."},
                              {".attn.c_proj.", ".self_attn.o_proj."},
                              {".mlp.c_fc.", ".mlp.up_proj."},
                              {".mlp.c_proj.", ".mlp.down_proj."}};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// Puts the rows of a fused tensor under the names of its parts.
void put_parts(Tensors& tensors, const std::string& name, const at::Tensor& value, const std::string& fused,
               const std::vector<std::pair<const char*, int64_t>>& parts) {
  int64_t begin = 0;
  for (const auto& [part, rows] : parts) {
    tensors[replaced(name, fused, part)] = value.narrow(0, begin, rows).contiguous().requires_grad_();
    begin += rows;
  }
}

}  // namespace

Tensors reference_weights(const config::Config& config, const Tensors& stored) {
  const bool is_gpt2 = config.model_type == "gpt2";
  const int64_t d = config.head_dim, q = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
  Tensors tensors;
  for (const auto& [stored_name, weight] : stored) {
    if (!stored_name.ends_with(".weight") && !stored_name.ends_with(".bias")) continue;  // the optimizer's
    std::string name = stored_name;
    if (is_gpt2)
      for (const auto& [from, to] : kOfGpt2) name = replaced(name, from, to);
    at::Tensor value = weight.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    if (is_gpt2 && name.ends_with("_proj.weight")) value = value.t().contiguous();
    if (name.find("qkv_proj") != std::string::npos) {
      put_parts(tensors, name, value, "qkv_proj", {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}});
    } else if (name.find("gate_up_proj") != std::string::npos) {
      const int64_t f = config.intermediate_size;
      put_parts(tensors, name, value, "gate_up_proj", {{"gate_proj", f}, {"up_proj", f}});
    } else {
      tensors[name] = value.requires_grad_();
    }
  }
  return tensors;
}

}  // namespace shardwise::testing
