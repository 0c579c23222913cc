#include "shardwise/parallel/owned_rows.h"

#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {

OwnedRows::OwnedRows(const ParamSpecs& specs, const comm::Group& group) {
  const std::vector<ParameterPtr> trained = trained_parameters(specs);
  std::vector<base::TensorRows> rows;
  for (const ParameterPtr& parameter : trained) {
    const int64_t count = parameter->size(0);
    rows.push_back({count, count == 0 ? 0 : parameter->value.numel() / count});
  }
  const base::RowRuns runs = base::RowRuns::even(rows, group.size());
  elements_ = runs.elements();
  for (const ParamSpec& spec : specs) {
    const Parameter& parameter = *spec.parameter;
    if (parameter.is_frozen()) rows_[&parameter] = {0, group.rank() == 0 ? parameter.size(0) : 0};
  }
  for (size_t i = 0; i < trained.size(); ++i) rows_[trained[i].get()] = runs.rows(i, group.rank());
}

base::Range OwnedRows::of(const Parameter& parameter) const {
  return elements_ ? rows_.at(&parameter) : base::Range{0, parameter.size(0)};
}

}  // namespace shardwise::parallel
