#include "shardwise/parallel/owned_rows.h"

#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {
namespace {

std::vector<base::TensorRows> rows_of(const std::vector<ParameterPtr>& parameters) {
  std::vector<base::TensorRows> rows;
  for (const ParameterPtr& parameter : parameters) {
    const int64_t count = parameter->size(0);
    rows.push_back({count, count == 0 ? 0 : parameter->value.numel() / count});
  }
  return rows;
}

}  // namespace

OwnedRows::OwnedRows(const std::vector<ParamSpecs>& parts, const comm::Group& group) {
  for (const ParamSpecs& specs : parts) {
    elements_.push_back(deal_(trained_parameters(specs), group));
    frozen_elements_.push_back(deal_(frozen_parameters(specs), group));
  }
}

base::Split OwnedRows::deal_(const std::vector<ParameterPtr>& parameters, const comm::Group& group) {
  const base::RowRuns runs = base::RowRuns::even(rows_of(parameters), group.size());
  for (size_t i = 0; i < parameters.size(); ++i) rows_[parameters[i].get()] = runs.rows(i, group.rank());
  return runs.elements();
}

base::Range OwnedRows::of(const Parameter& parameter) const {
  if (elements_.empty()) return {0, parameter.size(0)};
  const auto found = rows_.find(&parameter);
  return found == rows_.end() ? base::Range{} : found->second;
}

}  // namespace shardwise::parallel
