// The unsharded model, held against itself: what TP=N is compared with must be right first.
#pragma once
#include <map>
#include <memory>

#include "shardwise/doctor/report.h"
#include "shardwise/doctor/results.h"

namespace shardwise::doctor {

/// The results of one pass of an unsharded model, by label.
using Results = std::map<Label, at::Tensor>;

/// The weights in another dtype, over the same group.
std::unique_ptr<model::DecoderWeights> in_dtype(const model::DecoderWeights& weights, at::ScalarType dtype);

/// The results of a pass over a group of one. Gradients of parameters are those in the parameters, not
/// copies.
Results results_of(const model::DecoderWeights& weights, const Pass& pass, const Way& way);

/// Every parameter once, in the order of the config: no layer has another's.
Audit audit_names(const model::DecoderWeights& weights);
/// Without dropout the embedding's output is the rows of its ids, and of the positions where they are
/// learned.
Audit audit_embedding(const model::DecoderWeights& weights, const Task& task, const Results& truth);
/// The loss is the formula of nn/loss.h over the whole logits, computed by plain tensor operators.
Audit audit_loss(const Task& task, const Results& truth);
/// Along a random direction the main gradients, those of the pass before, are the difference quotient of the
/// loss. Where they are not, the first parameter from the end for which they are not is named. `weights` is
/// fp64 and changed meanwhile. Cost: four forwards, and four for each parameter to find the one.
Audit audit_gradients(const model::DecoderWeights& weights, const Task& task, uint64_t seed);

}  // namespace shardwise::doctor
