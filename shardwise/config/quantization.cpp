#include "shardwise/config/quantization.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/config/config.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {

using base::Fields;
using FileFormat = Quantization::FileFormat;

namespace {

constexpr const char *kField = "quantization_config", *kDynamic = "dynamic";

void check(bool is_met, const Fields& fields, const char* name, const char* rule, const nlohmann::json& got) {
  if (!is_met) base::throw_invalid(fields.label(name), rule, got);
}

/// Checks that a field that would change the meaning of the weights is missing or has the supported value.
void check_supported(const Fields& fields, const char* name, const nlohmann::json& supported) {
  const nlohmann::json* value = fields.find(name);
  const bool is_empty = value && (value->is_array() || value->is_object()) && value->empty();
  TORCH_CHECK_VALUE(!value || is_empty || *value == supported, fields.label(name), " must be ",
                    supported.is_null() ? "absent" : supported.dump(),
                    ", because other values are not supported; got ", value ? base::shown(*value) : "none",
                    " [SW0193]");
}

/// Reads an integer by its newer name or by its older one.
int64_t number(const Fields& fields, const char* name, const char* older) {
  return fields.integer(fields.find(name) ? name : fields.find(older) ? older : name);
}

constexpr int64_t kMaxGroupSize = 1 << 20;

int64_t read_group_size(const Fields& fields, const char* older) {
  const int64_t size = number(fields, "group_size", older);
  check(size == -1 || (size >= 8 && size <= kMaxGroupSize && size % 8 == 0), fields, "group_size",
        "-1 (a full row) or a multiple of 8, from 8 to 1048576", size);
  return size == -1 ? 0 : size;
}

/// Reads checkpoint_format or GPTQModel's name for it, `format`: the encoding of the zero points.
std::string read_format(const Fields& fields) {
  std::string format = "gptq";
  fields.or_text("format", format);
  std::string checkpoint_format = format;
  fields.or_text("checkpoint_format", checkpoint_format);
  check(format == checkpoint_format || !fields.find("format"), fields, "format",
        "the same as checkpoint_format", format);
  check(checkpoint_format == "gptq" || checkpoint_format == "gptq_v2", fields, "checkpoint_format",
        "gptq or gptq_v2", checkpoint_format);
  return checkpoint_format;
}

/// GPTQModel's "dynamic", which overrides fields for the modules that match a pattern: int8 with a scale per
/// row, for lm_head and the embedding.
nlohmann::json int8_rows(bool lm_head, bool embeddings) {
  const nlohmann::json int8{{"bits", 8}, {"group_size", -1}};
  nlohmann::json dynamic = nlohmann::json::object();
  if (lm_head) dynamic["+:^lm_head$"] = int8;
  if (embeddings) dynamic["+:^model.embed_tokens$"] = int8;
  return dynamic;
}

bool read_int8_head(const Fields& fields, const Quantization& q) {
  const bool allows = q.is_symmetric && !q.desc_act;
  const nlohmann::json supported = int8_rows(allows && q.lm_head, allows && q.embeddings);
  const nlohmann::json* value = fields.find(kDynamic);
  check_supported(fields, kDynamic, supported.empty() ? nlohmann::json() : supported);
  return value && !value->empty();
}

Quantization read_gptq(const Fields& fields) {
  Quantization q{.file_format = FileFormat::gptq, .bits = fields.integer("bits")};
  check(q.bits == 4 || q.bits == 8, fields, "bits", "4 or 8", q.bits);
  q.group_size = read_group_size(fields, "group_size");
  fields.or_flag("sym", q.is_symmetric);
  fields.or_flag("desc_act", q.desc_act);
  fields.or_flag("lm_head", q.lm_head);
  fields.or_flag("embeddings", q.embeddings);
  q.zero_points_minus_one = read_format(fields) == "gptq";
  q.int8_head = read_int8_head(fields, q);
  check_supported(fields, "pack_dtype", "int32");
  return q;
}

Quantization read_awq(const Fields& fields) {
  Quantization q{.file_format = FileFormat::awq, .bits = number(fields, "bits", "w_bit")};
  check(q.bits == 4, fields, "bits", "4", q.bits);
  q.group_size = read_group_size(fields, "q_group_size");
  q.is_symmetric = q.zero_points_minus_one = false;
  std::string version = "gemm";
  fields.or_text("version", version);
  check(version == "gemm" || version == "GEMM", fields, "version", "gemm", version);
  check_supported(fields, "zero_point", true);
  check_supported(fields, "modules_to_not_convert", nullptr);
  return q;
}

/// Checks that a packed dim's size is a multiple of `unit`.
void check_size(int64_t size, int64_t unit, const char* what, const std::string& where) {
  TORCH_CHECK_VALUE(size % unit == 0, where, ": ", what, " must be a multiple of ", unit,
                    ", the size of a packed word or group of quantized weights; got ", size, " [SW0194]");
}

}  // namespace

std::string Quantization::text() const {
  const char* const kinds[] = {"converted", "gptq", "awq"};
  const std::string groups =
      group_size == 0 ? "with a scale for each row" : fmt::format("in groups of {}", group_size);
  const bool differs = int8_head && (bits != 8 || group_size != 0);
  const char* head = !differs                ? ""
                     : embeddings && lm_head ? ", head and embedding int8"
                     : embeddings            ? ", embedding int8"
                                             : ", head int8";
  const char* activations = int8_activations ? ", int8 activations" : "";
  return fmt::format("int{} {}{}{} ({})", bits, groups, head, activations,
                     kinds[static_cast<int>(file_format)]);
}

Quantization Quantization::of(const std::string& parameter) const {
  const bool is_head = parameter.starts_with("lm_head.") || parameter.starts_with("model.embed_tokens.");
  Quantization q = *this;
  if (!is_head || !int8_head) return q;
  q.bits = 8;
  q.group_size = 0;
  return q;
}

std::vector<int64_t> PackedPart::shape(int64_t out_features, int64_t in_features) const {
  const auto blocks = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
  const int64_t in = in_block == 0 ? 1 : blocks(in_features, in_block);
  if (out_block == 0) return {in};
  return {in, blocks(out_features, out_block)};
}

std::vector<PackedPart> packed_parts(const Quantization& q) {
  TORCH_INTERNAL_ASSERT(q.is_packed());
  const int64_t words = q.values_per_word();
  const PackedPart zeros{".qzeros", ElementType::packed_int32, q.group_size, words};
  const PackedPart scales{".scales", ElementType::floating_point, q.group_size, 1};
  if (q.file_format == FileFormat::awq)
    return {{".qweight", ElementType::packed_int32, 1, words}, zeros, scales};
  return {{".qweight", ElementType::packed_int32, words, 1},
          zeros,
          scales,
          {".g_idx", ElementType::packed_int32, 1, 0}};
}

Config dense(Config config) {
  config.quantization.reset();
  return config;
}

std::optional<Quantization> read_quantization(const Fields& fields) {
  const nlohmann::json* value = fields.find(kField);
  if (!value) return std::nullopt;
  check(value->is_object(), fields, kField, "an object", *value);
  const Fields nested(*value, fields.label(kField) + ".");
  const std::string method = nested.text("quant_method");
  check(method == "gptq" || method == "awq", nested, "quant_method", "gptq or awq", method);
  return method == "gptq" ? read_gptq(nested) : read_awq(nested);
}

void write_quantization(const Quantization& q, OrderedJson& out) {
  if (!q.is_packed()) return;
  const int64_t group_size = q.group_size == 0 ? -1 : q.group_size;
  if (q.file_format == FileFormat::awq) {
    out[kField] = {{"quant_method", "awq"},
                   {"bits", q.bits},
                   {"group_size", group_size},
                   {"zero_point", true},
                   {"version", "gemm"}};
    return;
  }
  out[kField] = {
      {"quant_method", "gptq"},   {"bits", q.bits},
      {"group_size", group_size}, {"sym", q.is_symmetric},
      {"desc_act", q.desc_act},   {"checkpoint_format", q.zero_points_minus_one ? "gptq" : "gptq_v2"},
      {"lm_head", q.lm_head}};
  if (q.embeddings) out[kField]["embeddings"] = true;
  if (q.int8_head) out[kField][kDynamic] = int8_rows(q.lm_head, q.embeddings);
}

void check_quantization(const Config& c, const std::string& where) {
  if (!c.quantization) return;
  const Quantization& q = *c.quantization;
  TORCH_CHECK_VALUE(
      !q.lm_head || !c.tie_word_embeddings, where,
      ": a quantized lm_head must not be tied to the embedding; got tie_word_embeddings true [SW0195]");
  if (!q.is_packed()) return;
  const int64_t words = q.values_per_word();
  const int64_t unit = q.file_format == FileFormat::awq && q.group_size > 0 ? q.group_size : words;
  check_size(c.hidden_size, unit, "hidden_size", where);
  check_size(c.intermediate_size, unit, "intermediate_size", where);
  check_size(c.num_attention_heads * c.head_dim, unit, "num_attention_heads x head_dim", where);
  check_size(c.num_key_value_heads * c.head_dim, words, "num_key_value_heads x head_dim", where);
  const int64_t head_words = q.of("lm_head.weight").values_per_word();
  if (q.lm_head || q.embeddings) check_size(c.vocab_size, head_words, "vocab_size", where);
}

}  // namespace shardwise::config
