// Whether dropout masks are those of the unsharded model, place by place.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Collective: of every place on the stream, this rank's mask is the slice of that of a group of one, bit for
/// bit; and no two places, attention's probabilities among them, micro-batches or steps share a key. `task`
/// has dropout. (Attention's own masks show in its output, which the comparison with TP=1 holds.)
Audit audit_masks(const model::DecoderWeights& weights, const Task& task, const Way& way);

}  // namespace shardwise::doctor
