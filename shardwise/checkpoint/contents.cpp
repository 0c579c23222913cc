#include "shardwise/checkpoint/contents.h"

#include "shardwise/checkpoint/dtype.h"

namespace shardwise::checkpoint {
namespace {

/// What a checkpoint of one model keeps, tensor by tensor.
struct Listing {
  const model::Config& config;
  Entries entries = {};

  void append(const parallel::Parameter& parameter, const char* what, const at::Tensor& local) {
    for (Entry& entry : entries_of(parameter, config, what, local)) entries.push_back(std::move(entry));
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

Entries entries_of(const parallel::Parameter& parameter, const model::Config& config, const std::string& what,
                   const at::Tensor& local) {
  Entries entries;
  for (model::StoredTensor& stored : model::stored_tensors(parameter, config)) {
    std::string name = stored.name + what;
    entries.push_back({std::move(name), std::move(stored), local});
  }
  return entries;
}

Entries weight_entries(const model::DecoderWeights& weights) {
  Listing listing{weights.config()};
  for (const nn::UsedParameter& role : weights.roles()) {
    TORCH_INTERNAL_ASSERT(!role.parameter->quantized, role.parameter->name, " is quantized");
    listing.append(*role.parameter, /*what=*/"", role.parameter->value.detach());
  }
  return std::move(listing.entries);
}

Entries state_entries(const std::vector<ParameterState>& parameters, const model::Config& config) {
  Listing listing{config};
  for (const auto& [parameter, master, exp_avg, exp_avg_sq] : parameters) {
    if (master.defined()) listing.append(*parameter, kMaster, master.detach());
    listing.append(*parameter, kExpAvg, exp_avg);
    listing.append(*parameter, kExpAvgSq, exp_avg_sq);
  }
  return std::move(listing.entries);
}

io::Layout plan_weights(const Entries& entries) {
  return io::plan_file(specs_of(entries), {{"format", "pt"}});  // older transformers refuse a file without it
}

io::Layout plan_state(const Entries& entries) {
  std::vector<io::TensorSpec> specs = specs_of(entries);
  for (const ProgressNumber& number : kProgress) specs.push_back({number.name, io::Dtype::I64, {}});
  return io::plan_file(specs);
}

}  // namespace shardwise::checkpoint
