// What a rank holds of every parameter, and which of its gradients are terms that the ranks add up.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

struct HeldParameter {
  std::string name;
  int64_t elements;      // that this rank holds
  int64_t synchronized;  // in the optimizer's all_reduce; the same on every rank; none when frozen
  bool is_trained;
};

/// Every parameter once; a tied head is the embedding.
/// Terms: what works on the residual stream (norms, row-parallel biases, learned positions) under TP+SP; q/k
/// norm; the rows of KV heads that several ranks hold.
std::vector<HeldParameter> held_parameters(const Workload& workload, int rank);

}  // namespace shardwise::plan
