#include "shardwise/checkpoint/contents.h"

#include <algorithm>
#include <array>

#include "shardwise/checkpoint/dtype.h"

namespace shardwise::checkpoint {
namespace {

struct EntryList {
  const config::Config& config;
  Entries entries = {};

  void append(const parallel::Parameter& parameter, const std::string& suffix, const at::Tensor& local,
              const base::Range& rows) {
    for (Entry& entry : entries_of(parameter, config, suffix, local, rows))
      entries.push_back(std::move(entry));
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
                   const std::string& suffix, const at::Tensor& local, const base::Range& rows) {
  Entries entries;
  for (model::StoredTensor& stored : model::stored_tensors(parameter, config)) {
    std::string name = stored.name + suffix;
    entries.push_back({std::move(name), std::move(stored), local, rows});
  }
  return entries;
}

Entries weight_entries(const model::DecoderWeights& weights, const parallel::OwnedRows& owned) {
  EntryList list{weights.config()};
  for (const nn::UsedParameter& used : weights.all_parameters()) {
    TORCH_INTERNAL_ASSERT(!used.parameter->panels, used.parameter->name, " is packed");
    const bool is_held = !used.parameter->value.is_meta();
    const base::Range rows = is_held ? owned.of(*used.parameter) : base::Range{};
    list.append(*used.parameter, /*suffix=*/"", used.parameter->value_rows(rows), rows);
  }
  return std::move(list.entries);
}

Entries state_entries(const std::vector<StateTensor>& tensors, const config::Config& config,
                      const parallel::OwnedRows& owned) {
  EntryList list{config};
  for (const auto& [parameter, suffix, local, rows] : tensors) {
    const base::Range held = rows.value_or(base::Range{0, parameter->size(0)});
    const base::Range kept = base::intersection(held, owned.of(*parameter));
    const bool is_all = kept == held;
    list.append(*parameter, suffix,
                is_all ? local : local.narrow(/*dim=*/0, kept.begin - held.begin, kept.size()), kept);
  }
  return std::move(list.entries);
}

std::vector<StoredPart> parts_of(const Entry& entry, const std::vector<base::ShardRule::Piece>& pieces) {
  const model::StoredTensor& stored = entry.stored;
  const at::Tensor local = stored.oriented(entry.local);
  const size_t row_dim = stored.is_transposed ? 1 : 0;  // of the parameter's rows in the file
  std::vector<StoredPart> parts;
  for (const auto& [global_begin, local_begin, size] : pieces) {
    std::array<base::Range, 2> in_file{};
    for (size_t dim = 0; dim < std::min<size_t>(2, stored.shape.size()); ++dim)
      in_file[dim] = {0, stored.shape[dim]};
    std::array<base::Range, 2> in_shard = in_file;
    in_file[size_t(stored.dim)] = {global_begin, global_begin + size};
    in_shard[size_t(stored.dim)] = {local_begin, local_begin + size};

    const base::Range rows = base::intersection(in_shard[row_dim], entry.rows);
    const int64_t shift = in_file[row_dim].begin - in_shard[row_dim].begin;
    in_file[row_dim] = {rows.begin + shift, rows.end + shift};
    in_shard[row_dim] = {rows.begin - entry.rows.begin, rows.end - entry.rows.begin};
    if (in_shard[0].empty() || (local.dim() > 1 && in_shard[1].empty())) continue;
    at::Tensor part = local.narrow(0, in_shard[0].begin, in_shard[0].size());
    if (local.dim() > 1) part = part.narrow(1, in_shard[1].begin, in_shard[1].size());
    parts.push_back({in_file[0], in_file[1], part});
  }
  return parts;
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
