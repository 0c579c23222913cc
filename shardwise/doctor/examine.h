// Runs a model at TP=1 and at TP=N, forward and backward, and says where the two part.
#pragma once
#include <filesystem>
#include <functional>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// The model that is examined.
struct Subject {
  model::Config config;
  at::ScalarType dtype;  // fp32 or bf16
  /// Collective over the weights' group: fills them, the same at every tp size.
  std::function<void(model::DecoderWeights&)> load;
};

struct Examination {
  Tokens tokens;                         // s ≥ 4
  uint64_t seed = 0;                     // of masks, directions, and the rehearsal
  std::filesystem::path directory = {};  // empty, that all ranks see: the rehearsal writes a few MB to it
  /// On rank 0, before each of its parts; may be empty.
  std::function<void(const std::string& part)> on_part = {};
};

/// Collective: a plain task and all that training can ask for, in fp64 and in the subject's dtype, under TP
/// and TP+SP; gathered inputs kept and gathered again, and full recomputation, in fp64; the audits; last,
/// where all of these hold, the rehearsal of training, which would show the same again. Rank 0 also computes
/// what the unsharded model does, while the others wait. Memory a parameter: 24 bytes by N on every rank, on
/// rank 0 32 more; and the largest tensor twice in fp64. Errors: c10::ValueError for a group of one;
/// base::FileError.
Report examine(const Subject& subject, const Examination& examination, const comm::Group& group);

}  // namespace shardwise::doctor
