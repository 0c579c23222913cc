// The quantization of a model's linear weights and its file format: quantization_config in config.json.
//
// The files store a quantized weight "<module>.weight" [out, in] as several tensors, <module>.qweight and
// others. packed_parts() lists them and the block of the weight that one of their indices covers; shapes and
// shards follow from that list.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::config {

struct Config;

/// How the linear weights of a model are quantized, and how its files store them.
struct Quantization {
  /// gptq, awq: the formats of these tools. dense: unquantized files, which a load quantizes.
  enum class FileFormat { dense, gptq, awq };

  FileFormat file_format = FileFormat::dense;  // dense, gptq or awq
  int64_t bits = 4;                            // per weight: 4 or 8
  int64_t group_size = 0;             // input features that share a scale and zero point; 0: a full row
  bool is_symmetric = true;           // the file's "sym": all zero points are equal
  bool desc_act = false;              // GPTQ's act-order: g_idx assigns each column to a group in any order
  bool zero_points_minus_one = true;  // the first GPTQ version stores zero points minus one
  bool lm_head = false;               // quantizes lm_head too
  bool embeddings = false;            // quantizes the embedding too (an extension of ours)
  bool int8_head = false;             // of these two: int8 with a scale per row, whatever the layers have
  bool int8_activations = false;      // products round activations to int8; chosen on load, not stored
  bool operator==(const Quantization&) const = default;

  /// Returns how the weight `parameter` is quantized: with the head's bits and groups for lm_head and the
  /// embedding.
  Quantization of(const std::string& parameter) const;

  /// Returns true if the files store packed weights.
  bool is_packed() const { return file_format != FileFormat::dense; }
  /// Returns how many weights a 32-bit word holds.
  int64_t values_per_word() const { return 32 / bits; }
  /// Returns a description for output: "int4 in groups of 128 (gptq)".
  std::string text() const;
};

/// The kind of a stored tensor's elements.
enum class ElementType {
  floating_point,  // fp64, fp32, bf16 or fp16
  packed_int32,    // words of quantized weights or zero points; also group indices
};

/// One of the tensors of a packed weight [out, in]. Its shape is [in blocks, out blocks].
struct PackedPart {
  std::string leaf;          // ".qweight"
  ElementType element_type;  // of the stored tensor
  int64_t in_block;          // input features per index; 0: a full row
  int64_t out_block;         // output features per index; 0: the tensor has no such dim

  /// Returns the shape for a weight [out_features, in_features].
  std::vector<int64_t> shape(int64_t out_features, int64_t in_features) const;
};
/// Returns the tensors of a packed weight. Errors: TORCH_INTERNAL_ASSERT for dense files.
std::vector<PackedPart> packed_parts(const Quantization& quantization);

/// Returns the config of the same model without quantization.
Config dense(Config config);

/// Checks that the file format supports the sizes of the weights. Errors: c10::ValueError beginning with
/// `where` otherwise.
void check_quantization(const Config& config, const std::string& where);

}  // namespace shardwise::config
