// Phi-3: Llama with a sliding window, optional partial rotary embedding, and fused q|k|v and gate|up in its
// files, like our parameters. Preset: the config.json of microsoft/Phi-3-mini-4k-instruct. longrope scaling
// is not implemented.
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/config/family_llama.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config phi3_defaults() {
  Config c;
  c.model_type = "phi3";
  c.norm_eps = 1e-5;
  c.bos_token_id = 1;
  c.eos_token_id = {32000};
  return c;
}

Config read_phi3(const base::Fields& fields) {
  Config c = phi3_defaults();
  read_llama_fields(fields, c);
  TORCH_CHECK_VALUE(!c.rope_scaling, fields.label("rope_scaling"),
                    " must be default for model_type phi3; got llama3 [SW0189]");
  read_window(fields, c);
  return c;
}

void write_phi3(const Config& c, OrderedJson& out) {
  write_llama_fields(c, out);
  write_window(c, out);
  out["pad_token_id"] = nullptr;  // transformers' default id may exceed a small vocabulary
}

Config phi_3_mini() {
  Config c = phi3_defaults();
  c.vocab_size = 32064;
  c.hidden_size = 3072;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 32;
  c.head_dim = 96;
  c.max_position_embeddings = 4096;
  c.sliding_window = 2047;
  c.dtype = "bfloat16";
  return c;
}

}  // namespace

Family phi3_family() {
  Family family =
      llama_like("phi3", "Phi3ForCausalLM", read_phi3, write_phi3, {{"phi-3-mini", phi_3_mini()}});
  family.modules = {};  // the files have our names
  return family;
}

}  // namespace shardwise::config
