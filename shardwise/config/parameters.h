// The parameter table: every parameter of a decoder, from the config alone. Allocates no tensors.
//
// Assembly, loading, saving, sharding and planning all read names, shapes, sharding rules, initializations
// and storage formats from it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "shardwise/base/parameter.h"
#include "shardwise/config/config.h"
#include "shardwise/config/layout.h"

namespace shardwise::config {

/// How a parameter is stored in memory and in the model's files.
enum class StorageFormat {
  dense,      // floating point in both
  quantized,  // quantized in memory, floating point in the files: a load quantizes it
  packed,     // quantized in both
};
/// Returns the format of the weights that the config quantizes; dense if it quantizes none.
StorageFormat quantized_format(const Config& config);

/// One parameter of a decoder, without values.
struct ParameterInfo {
  std::string name;            // as in parallel::Parameter: the same in every family
  std::vector<int64_t> shape;  // of the unsharded parameter
  base::ShardRule rule = {};   // the slice that each rank holds
  base::ParameterUse use = base::ParameterUse::sharded;  // from which its gradient's reduction follows
  base::Init init = {};                                  // its initial values
  StorageFormat format = StorageFormat::dense;           // in memory and in the files
  std::optional<int64_t> block = {};  // the number of its block; nullopt: in none, as embedding and head

  /// Returns the number of elements of the unsharded parameter.
  int64_t numel() const;
};

/// Every parameter once, in the order of DecoderWeights::used_parameters (a tied lm_head is the embedding).
class ParameterTable {
 public:
  /// Lists the parameters of `config` with the shard rules of `layout`.
  ParameterTable(const Config& config, const Layout& layout);
  /// The table of an unsharded model.
  explicit ParameterTable(const Config& config);

  /// Iterates over the parameters in order.
  auto begin() const { return parameters_.begin(); }
  /// The end of the iteration.
  auto end() const { return parameters_.end(); }
  /// Returns the number of parameters.
  size_t size() const { return parameters_.size(); }
  /// Returns parameter number `i` in order.
  const ParameterInfo& operator[](size_t i) const { return parameters_[i]; }
  /// Returns whether the model has this parameter.
  bool contains(const std::string& name) const { return index_.contains(name); }
  /// Returns the parameter of this name. Errors: std::out_of_range if the model has no such parameter.
  const ParameterInfo& at(const std::string& name) const { return parameters_[index_.at(name)]; }

 private:
  std::vector<ParameterInfo> parameters_;
  std::unordered_map<std::string, size_t> index_;  // by name
};

/// Returns the last part of the name of a parameter's module: "qkv_proj" of
/// model.layers.3.self_attn.qkv_proj.weight.
std::string module_name(const std::string& parameter);

}  // namespace shardwise::config
