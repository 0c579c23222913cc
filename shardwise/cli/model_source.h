// The model that a command's flags select: directory, tokenizer, dtype and weights.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/checkpoint/panel_index.h"
#include "shardwise/cli/flags.h"
#include "shardwise/model/decoder.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

struct ModelOptions {
  std::optional<std::string> model, tokenizer, quantize;
  std::optional<int64_t> group_size;
  std::optional<std::string> head;
  std::string activations = "precise";
  std::string dtype = "auto", load_format = "auto";
  int64_t tp = 1;
};

/// Adds --tokenizer, whose help continues with `more`, such as " [bytes]".
void add_tokenizer_flag(Flags& flags, std::optional<std::string>& tokenizer, const std::string& more = "");

/// Adds --dtype.
void add_dtype_flag(Flags& flags, std::string& dtype);
/// Adds --quantize, --group-size and --head.
void add_quantize_flags(Flags& flags, ModelOptions& options);

/// Adds --model, --tokenizer, --dtype, --load-format, --quantize, --group-size, --head, --activations and
/// --tp.
void add_model_flags(Flags& flags, ModelOptions& options);

/// Errors: c10::ValueError, beginning with `command`, if the panel files in `directory` are not for `tp`
/// ranks.
void check_tp_of_panels(const std::string& command, const std::string& directory, int64_t tp,
                        const checkpoint::PanelOptions& written);

/// Returns the number of ranks that the panel files of --model are for; nullopt if it has none, or they are
/// not read.
std::optional<int64_t> tp_of_panels(const ModelOptions& options);

/// A checked model, known before any rank starts.
class ModelSource {
 public:
  /// Errors: c10::ValueError, beginning with `command`, for invalid flags and files.
  ModelSource(const std::string& command, const ModelOptions& options);

  const std::filesystem::path& directory() const { return directory_; }
  /// Returns the model's config with the quantization of --quantize, if given.
  const config::Config& config() const { return config_; }
  at::ScalarType dtype() const;
  /// Returns whether a load maps the packed weights from panel files.
  bool maps_panels() const { return maps_panels_; }
  /// Returns "fp32" or "bf16".
  std::string dtype_name() const { return dtype() == at::kFloat ? "fp32" : "bf16"; }

  /// Logs one line for each oddity in the model's files: tokens that it does not have, a head that is not
  /// used, a missing link to the newest checkpoint.
  void warn(const std::string& command) const;

  /// Returns whether --tokenizer is given or the directory has a tokenizer.
  bool has_tokenizer() const;
  /// Loads the tokenizer of --tokenizer or of the directory, else bytes. Errors: as load_tokenizer.
  std::unique_ptr<text::Tokenizer> tokenizer() const;
  /// Returns the directory with the tokenizer's other files, such as a chat template.
  std::string tokenizer_directory() const;

  /// Loads the weights, or draws them from `seed` with --load-format dummy, and resets the peaks of the
  /// memory counters. Collective over `world`, the ranks of all pipeline stages. Returns their cost.
  checkpoint::LoadCost load(model::DecoderWeights& weights, uint64_t seed, const comm::Group& world) const;
  /// Like load, but leaves weights in their files where it can (checkpoint::map_weights).
  checkpoint::LoadCost map(model::DecoderWeights& weights, uint64_t seed, const comm::Group& world) const;

 private:
  using Load = checkpoint::LoadStats(const std::filesystem::path&, const model::DecoderWeights&);
  checkpoint::LoadCost fill(model::DecoderWeights& weights, uint64_t seed, Load* load,
                            const comm::Group& world) const;
  bool is_dummy() const { return options_.load_format == "dummy"; }

  ModelOptions options_;
  std::filesystem::path directory_;
  bool maps_panels_ = false;
  config::Config config_;
};

}  // namespace shardwise::cli
