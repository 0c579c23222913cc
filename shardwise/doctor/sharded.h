// A sharded pass beside the unsharded one.
#pragma once
#include "shardwise/doctor/truth.h"

namespace shardwise::doctor {

/// Of an unsharded model; filled on rank 0 alone.
struct Unsharded {
  Results exact;                     // in fp64
  std::map<Label, double> rounding;  // how far its results in the run's dtype are from those
  Norms norms;                       // of the exact gradients
};

/// What one sharded pass adds to a report.
struct Compared {
  Comparison comparison;
  std::vector<Audit> audits;
  std::vector<Traffic> traffic;
};

/// Collective: one pass of `weights`, every result of it compared with `unsharded`, whose task it is.
Compared compare(const model::DecoderWeights& weights, const Task& task, const Way& way,
                 const Unsharded& unsharded);

/// How far `pass`, of an unsharded model in another dtype, is from the exact results.
std::map<Label, double> rounding_of(const model::DecoderWeights& weights, const Pass& pass, const Way& way,
                                    const Results& exact);

}  // namespace shardwise::doctor
