// How a model's linear weights are quantized, and how its files keep them: what config.json says under
// quantization_config.
//
// A quantized weight "<module>.weight" [out, in] lies in several tensors, <module>.qweight and others; which
// ones and what one of their indices covers, packed_parts() says. Everything else follows from that list.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::base {
class Fields;
}

namespace shardwise::model {

struct Config;

struct Quantization {
  /// gptq, awq: as these tools publish them. dense: ordinary weights, converted while they are loaded.
  enum class Files { dense, gptq, awq };

  Files files = Files::dense;
  int64_t bits = 4;            // of a code: 4 or 8
  int64_t group_size = 0;      // input features that share a scale and a zero; 0: all of a row
  bool is_symmetric = true;    // as the file says; nothing depends on it
  bool lists_groups = false;   // GPTQ's desc_act: each column's group is listed, in no order
  bool zeros_less_one = true;  // GPTQ's first version keeps zeros so
  bool head = false;           // lm_head too
  bool embeddings = false;     // and the table of embeddings (ours alone)
  bool operator==(const Quantization&) const = default;

  bool is_packed() const { return files != Files::dense; }
  int64_t codes_per_word() const { return 32 / bits; }
  /// For people: "int4 in groups of 128 (gptq)".
  std::string text() const;
};

/// What a stored tensor's elements are.
enum class Holds {
  numbers,  // fp64, fp32, bf16 or fp16
  words,    // int32
};

/// One of the tensors that hold a packed weight [out, in]: of the shape [in, out], in blocks.
struct PackedPart {
  std::string leaf;  // ".qweight"
  Holds holds;
  int64_t in_block;   // input features of one index; 0: a whole row's
  int64_t out_block;  // outputs of one index; 0: no such dim

  /// Of a weight [out, in].
  std::vector<int64_t> shape(int64_t out_features, int64_t in_features) const;
};
/// Errors: TORCH_INTERNAL_ASSERT for dense files.
std::vector<PackedPart> packed_parts(const Quantization& quantization);

/// Whether the parameter of ours is one that the config quantizes.
bool is_quantized(const Config& config, const std::string& parameter);
/// Whether the files keep it packed.
bool is_packed(const Config& config, const std::string& parameter);

/// The config of the same model with ordinary weights.
Config dense(Config config);

/// From config.json, where it has a quantization_config. Errors: c10::ValueError naming the field for what is
/// not read here.
std::optional<Quantization> read_quantization(const base::Fields& fields);
/// Adds the quantization_config of packed files.
void write_quantization(const Quantization& quantization, nlohmann::ordered_json& out);

/// Errors: c10::ValueError beginning with `where` when the files' layout cannot hold weights of these sizes.
void check_quantization(const Config& config, const std::string& where);

}  // namespace shardwise::model
