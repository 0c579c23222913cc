// The routed experts of a rank in generation, and the rows that choose them, if every expert is chosen
// equally often and independently by each row.
//
// Up to tp, ep ranks share a replica's experts by number, and tp/ep ranks split each one along its features:
// every rank has all rows, and the all_reduce that ends the MLP adds the experts' sums too. Above tp, experts
// are shared by the ranks of ep/tp replicas, which all process as many rows: each rank sends its part of the
// replica's rows to the experts and gets their results back (all_to_all).
#pragma once
#include <algorithm>

#include "shardwise/plan/operations.h"

namespace shardwise::plan {

/// The ranks that share the experts of a block.
struct ExpertRanks {
  int64_t tp = 1;  // ranks that have all rows of a replica
  int64_t ep = 1;  // ranks that share the experts by number

  /// Returns the number of replicas that share experts.
  int64_t replicas() const { return std::max<int64_t>(ep / tp, 1); }
  /// Returns the number of ranks that split each expert.
  int64_t ranks_of_expert() const { return std::max<int64_t>(tp / ep, 1); }
  /// Returns whether `of_stage` replicas can be divided so: ep divides tp, or is tp times a divisor of them.
  bool divide(int64_t of_stage) const { return tp % ep == 0 || (ep % tp == 0 && of_stage % (ep / tp) == 0); }
};

/// What a rank has of a block's experts, and what a forward does with them.
struct RoutedExperts {
  int64_t held;      // experts that the rank has
  int64_t features;  // that the rank has inside each
  double read;       // of those held, that any row chooses: the weights that the forward reads
  double rows;       // that the held experts process, over all of them
  double sent_rows;  // that the rank sends to other ranks' experts, and gets back
};

/// Returns the expected number of `held` experts that at least one of `rows` rows chooses: each chooses
/// `per_token` of `count` different ones, so one expert is missed by all with (1 − per_token/count)^rows.
double expected_chosen(const config::Experts& experts, int64_t held, int64_t rows);

/// Returns rank 0's share, which is the largest, in a forward of `rows` tokens of each replica. The config
/// must have experts.
RoutedExperts routed_experts(const config::Config& config, const ExpertRanks& ranks, int64_t rows);

/// Returns the operations of a block's router and of the rank's experts. The experts' weights count as far as
/// they are read, and their products as one: a grouped product computes the rows of all experts side by side.
Operations routed_operations(const config::Config& config, const RoutedExperts& experts, int64_t rows,
                             int64_t element_bytes);

}  // namespace shardwise::plan
