// Whether a run that is saved is the run that goes on from there.
#pragma once
#include <filesystem>

#include "shardwise/doctor/audited_run.h"

namespace shardwise::doctor {

/// Collective: `checkpoint`, just saved by `live`, read by the same ranks and, on rank 0, by one alone, holds
/// the weights, masters and moments of `live` to the bit; and the next step of a run that is resumed from it,
/// as `options` say, gives the loss, norm and weights of live's next, which is done. Cost: the whole of one
/// tensor at a time. Errors: those of train::Job and checkpoint::load_weights.
Audit audit_resumption(AuditedRun& live, const std::filesystem::path& checkpoint,
                       const train::Options& options, const comm::Group& group);

}  // namespace shardwise::doctor
