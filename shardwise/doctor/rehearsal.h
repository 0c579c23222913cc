// A few steps of training on a model of the same kind in small: what one micro-batch does not show, the text,
// the optimizer, checkpoints, and the family's formulas.
#pragma once
#include <vector>

#include "shardwise/doctor/rehearsal_options.h"
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Collective: the trainer under TP+SP and TP, saved and resumed; the audits "training text" and "optimizer"
/// of either, "checkpoint", and "formula", complete on rank 0. Cost: a few MB in the directory, some
/// collectives on tensors of kilobytes. Errors: base::FileError where the directory cannot be written.
std::vector<Audit> rehearse(const Rehearsal& rehearsal, const comm::Group& group);

}  // namespace shardwise::doctor
