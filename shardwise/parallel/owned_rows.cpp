#include "shardwise/parallel/owned_rows.h"

#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {
namespace {

base::RowRuns dealt(const std::vector<ParameterPtr>& trained, int ranks) {
  std::vector<base::TensorRows> rows;
  for (const ParameterPtr& parameter : trained) {
    const int64_t count = parameter->size(0);
    rows.push_back({count, count == 0 ? 0 : parameter->value.numel() / count});
  }
  return base::RowRuns::even(rows, ranks);
}

}  // namespace

OwnedRows::OwnedRows(const std::vector<ParamSpecs>& parts, const comm::Group& group) {
  for (const ParamSpecs& specs : parts) {
    const std::vector<ParameterPtr> trained = trained_parameters(specs);
    const base::RowRuns runs = dealt(trained, group.size());
    elements_.push_back(runs.elements());
    for (const ParamSpec& spec : specs) {
      const Parameter& parameter = *spec.parameter;
      if (parameter.is_frozen()) rows_[&parameter] = {0, group.rank() == 0 ? parameter.size(0) : 0};
    }
    for (size_t i = 0; i < trained.size(); ++i) rows_[trained[i].get()] = runs.rows(i, group.rank());
  }
}

base::Range OwnedRows::of(const Parameter& parameter) const {
  if (elements_.empty()) return {0, parameter.size(0)};
  const auto found = rows_.find(&parameter);
  return found == rows_.end() ? base::Range{} : found->second;
}

}  // namespace shardwise::parallel
