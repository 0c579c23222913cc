#include "shardwise/checkpoint/contents.h"

#include "shardwise/checkpoint/dtype.h"

namespace shardwise::checkpoint {
namespace {

void append_state(Entries& entries, const parallel::Parameter& parameter, const char* what,
                  const at::Tensor& local) {
  for (model::StoredTensor& stored : model::stored_tensors(parameter)) {
    std::string name = stored.name + what;
    entries.push_back({std::move(name), std::move(stored), local});
  }
}

std::vector<io::TensorSpec> specs_of(const Entries& entries) {
  std::vector<io::TensorSpec> specs;
  for (const Entry& entry : entries) {
    specs.push_back({entry.name, file_dtype(entry.local.scalar_type(), entry.name), entry.stored.shape});
  }
  return specs;
}

}  // namespace

Entries weight_entries(const model::DecoderWeights& weights) {
  Entries entries;
  for (const nn::Role& role : weights.roles()) {
    append_state(entries, *role.parameter, /*what=*/"", role.parameter->value.detach());
  }
  return entries;
}

Entries state_entries(const std::vector<ParameterState>& parameters) {
  Entries entries;
  for (const auto& [parameter, master, exp_avg, exp_avg_sq] : parameters) {
    if (master.defined()) append_state(entries, *parameter, kMaster, master.detach());
    append_state(entries, *parameter, kExpAvg, exp_avg);
    append_state(entries, *parameter, kExpAvgSq, exp_avg_sq);
  }
  return entries;
}

io::Layout plan_weights(const Entries& entries) {
  return io::plan_file(specs_of(entries), {{"format", "pt"}});  // older transformers refuse a file without it
}

io::Layout plan_state(const Entries& entries) {
  std::vector<io::TensorSpec> specs = specs_of(entries);
  specs.push_back({kStep, io::Dtype::I64, {}});
  specs.push_back({kSequences, io::Dtype::I64, {}});
  return io::plan_file(specs);
}

}  // namespace shardwise::checkpoint
