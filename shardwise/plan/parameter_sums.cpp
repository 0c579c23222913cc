#include "shardwise/plan/parameter_sums.h"

#include "shardwise/plan/parameters.h"

namespace shardwise::plan {

ParameterSums parameter_sums(const Workload& workload) {
  ParameterSums sums;
  for (const LocalParameter& parameter : local_parameters(workload, /*rank=*/0)) {
    (parameter.is_expert ? sums.experts : sums.parameters) += parameter.elements;
    if (parameter.is_trained && !parameter.is_expert) sums.trained += parameter.elements;
    sums.synchronized += parameter.synchronized;
    if (parameter.name != "model.embed_tokens.weight") continue;
    sums.embedding = parameter.elements;
    sums.is_embedding_trained = parameter.is_trained;
  }
  return sums;
}

}  // namespace shardwise::plan
