// Which rows of its shards a data-parallel rank owns: those of which it updates the weights and keeps the
// optimizer states (ZeRO stages 1 and 2, Rajbhandari et al. 2020), counts the norm and writes checkpoints.
#pragma once
#include <unordered_map>
#include <vector>

#include "shardwise/base/row_runs.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// The rows (of dim 0) of every parameter's local shard that a data-parallel rank owns. Each row has one
/// owner among the ranks that hold it.
class OwnedRows {
 public:
  /// Those of a rank without replicas: all.
  OwnedRows() = default;
  /// Deals the rows of each part's trained parameters, in their order, to the ranks of the data-parallel
  /// `group`, by base::RowRuns::even, and those of its frozen ones likewise. The ranks must hold the same
  /// shards.
  OwnedRows(const std::vector<ParamSpecs>& parts, const comm::Group& group);

  /// Returns the rows of the parameter that this rank owns; none of one that was not dealt.
  base::Range of(const Parameter& parameter) const;
  /// Returns for each part which elements of its concatenated trained parameters each rank owns; nothing for
  /// a rank without replicas.
  const std::vector<base::Split>& elements() const { return elements_; }
  /// Returns the same of the frozen parameters.
  const std::vector<base::Split>& frozen_elements() const { return frozen_elements_; }

 private:
  /// Deals the rows of a part's parameters. Returns which elements each rank owns.
  base::Split deal_(const std::vector<ParameterPtr>& parameters, const comm::Group& group);

  std::vector<base::Split> elements_, frozen_elements_;
  std::unordered_map<const Parameter*, base::Range> rows_;
};

}  // namespace shardwise::parallel
