#include "shardwise/cli/quantization_flags.h"

#include <c10/util/Exception.h>

#include "shardwise/cli/flags.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kInt4Group = 128;

}  // namespace

config::Quantization quantization_of(const std::string& command, int64_t bits,
                                     const std::optional<int64_t>& group_size) {
  TORCH_CHECK_VALUE(bits == 8 || bits == 4, command, ": --bits must be 8 or 4; got ", bits, " [SW0095]");
  const int64_t size = group_size.value_or(bits == 4 ? kInt4Group : 0);
  TORCH_CHECK_VALUE(!group_size || size == 32 || size == 64 || size == 128, command,
                    ": --group-size must be 32, 64 or 128; got ", size, " [SW0096]");
  return {.bits = bits, .group_size = size};
}

void set_head_(config::Quantization& q, const std::string& command, const std::string& head) {
  check_choice(command, "--head", head, {"int8", "int4", "none"});
  TORCH_CHECK_VALUE(head != "int4" || q.bits == 4, command,
                    ": --head int4 needs layers in int4; got layers in int", q.bits, " [SW0709]");
  q.lm_head = head != "none";
  q.int8_head = head == "int8";
}

config::Quantization quantization_on_load(const std::string& command, const std::string& name,
                                          const std::optional<int64_t>& group_size, const std::string& head,
                                          const config::Config& model) {
  check_choice(command, "--quantize", name, {"int8", "int4"});
  config::Quantization q = quantization_of(command, name == "int8" ? 8 : 4, group_size);
  set_head_(q, command, head);
  q.embeddings = q.lm_head;
  q.lm_head &= !model.tie_word_embeddings;
  return q;
}

}  // namespace shardwise::cli
