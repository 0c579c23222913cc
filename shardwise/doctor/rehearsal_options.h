// What the rehearsal trains, and how: options of `shardwise train` under which everything leaves its mark.
#pragma once
#include <filesystem>

#include "shardwise/comm/group.h"
#include "shardwise/model/config.h"
#include "shardwise/plan/workload.h"
#include "shardwise/train/options.h"

namespace shardwise::doctor {

struct Rehearsal {
  model::Config config;             // of the model that is examined
  at::ScalarType dtype;             // fp32 or bf16
  std::filesystem::path directory;  // that all ranks see; some MB are written to it
  uint64_t seed = 0;
};

/// Writes the text and the small model's config.json. Errors: base::FileError.
void put_input(const Rehearsal& rehearsal);

/// Two micro-batches a step, clipping, weight decay, a warm-up that no step is beyond, nothing random: each
/// step has its own learning rate, and the optimizer can be followed by formula.
train::Options options_of(const Rehearsal& rehearsal, plan::Stream stream, int tp);

/// The same run, continued from a checkpoint.
train::Options resumed(train::Options options, const std::filesystem::path& checkpoint, int tp);

}  // namespace shardwise::doctor
