// A checkpoint as a command that runs models names it: directory, tokenizer, dtype, weights.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/cli/flags.h"
#include "shardwise/model/decoder.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

struct ModelOptions {
  std::optional<std::string> model, tokenizer, quantize;
  std::optional<int64_t> group_size;
  std::string dtype = "auto", load_format = "auto";
  int64_t tp = 1;
};

/// --model, --tokenizer, --dtype, --load-format, --quantize, --group-size, --tp.
void add_model_flags(Flags& flags, ModelOptions& options);

/// Errors: c10::ValueError unless `value` is one of `words`.
void check_word(const std::string& command, const std::string& flag, const std::string& value,
                const std::vector<std::string>& words);

/// What is known of a model before any rank starts.
class NamedModel {
 public:
  /// Errors: c10::ValueError, beginning with `command`, for flags and files that are wrong.
  NamedModel(const std::string& command, const ModelOptions& options);

  const std::filesystem::path& directory() const { return directory_; }
  /// With what --quantize asks for.
  const model::Config& config() const { return config_; }
  at::ScalarType dtype() const;
  /// "fp32" or "bf16".
  std::string dtype_name() const { return dtype() == at::kFloat ? "fp32" : "bf16"; }

  /// Whether --tokenizer names one, or the directory holds one.
  bool has_tokenizer() const;
  /// That one; bytes where there is none. Errors: load_tokenizer's.
  std::unique_ptr<text::Tokenizer> tokenizer() const;
  /// Where the tokenizer's other files lie, a chat template among them.
  std::string tokenizer_directory() const;

  /// Collective: the files' weights, or with --load-format dummy drawn from `seed`. The memory counter's peak
  /// begins anew after it.
  checkpoint::LoadCost load(model::DecoderWeights& weights, uint64_t seed) const;

 private:
  bool is_dummy() const { return options_.load_format == "dummy"; }

  ModelOptions options_;
  std::filesystem::path directory_;
  model::Config config_;
};

}  // namespace shardwise::cli
