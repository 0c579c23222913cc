#include "shardwise/checkpoint/contents.h"

#include "shardwise/checkpoint/dtype.h"

namespace shardwise::checkpoint {
namespace {

struct EntryList {
  const config::Config& config;
  Entries entries = {};

  void append(const parallel::Parameter& parameter, const std::string& suffix, const at::Tensor& local) {
    for (Entry& entry : entries_of(parameter, config, suffix, local)) entries.push_back(std::move(entry));
  }
};

std::vector<io::TensorSpec> specs_of(const Entries& entries) {
  std::vector<io::TensorSpec> specs;
  for (const Entry& entry : entries) {
    specs.push_back({entry.name, file_dtype(entry.local.scalar_type(), entry.name), entry.stored.shape});
  }
  return specs;
}

}  // namespace

Entries entries_of(const parallel::Parameter& parameter, const config::Config& config,
                   const std::string& suffix, const at::Tensor& local) {
  Entries entries;
  for (model::StoredTensor& stored : model::stored_tensors(parameter, config)) {
    std::string name = stored.name + suffix;
    entries.push_back({std::move(name), std::move(stored), local});
  }
  return entries;
}

Entries weight_entries(const model::DecoderWeights& weights) {
  EntryList list{weights.config()};
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    TORCH_INTERNAL_ASSERT(!used.parameter->panels, used.parameter->name, " is packed");
    list.append(*used.parameter, /*suffix=*/"", used.parameter->value.detach());
  }
  return std::move(list.entries);
}

Entries state_entries(const std::vector<StateTensor>& tensors, const config::Config& config) {
  EntryList list{config};
  for (const auto& [parameter, suffix, local] : tensors) list.append(*parameter, suffix, local);
  return std::move(list.entries);
}

io::FileLayout plan_weights(const Entries& entries) {
  return io::plan_file(specs_of(entries), {{"format", "pt"}});  // older transformers versions require it
}

io::FileLayout plan_state(const Entries& entries) {
  std::vector<io::TensorSpec> specs = specs_of(entries);
  for (const ProgressNumber& number : kProgress) specs.push_back({number.name, io::Dtype::I64, {}});
  return io::plan_file(specs);
}

}  // namespace shardwise::checkpoint
