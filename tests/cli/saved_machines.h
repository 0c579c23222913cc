// A cache directory with machines, as `shardwise bench machine --save` leaves them.
#pragma once
#include "shardwise/cli/saved_machine.h"
#include "shardwise/plan/machine_file.h"
#include "tests/cli/trained_model.h"
#include "tests/plan/synthetic_machine.h"
#include "tests/support/environment.h"

namespace shardwise::cli {

/// Sets XDG_CACHE_HOME to a temporary directory, also for started programs, whose ranks have one thread.
class SavedMachines : public TrainedModel {
 protected:
  SavedMachines() { environment_.set("XDG_CACHE_HOME", cache_.path()); }

  /// Saves the machine of that many ranks, each of which computes 1e9 FLOP per second.
  static plan::Machine save(int64_t ranks, double seconds_per_call = 0) {
    plan::Machine machine = plan::synthetic_machine(ranks, 1e9, seconds_per_call);
    saved_machine_file({ranks, 1}).write(plan::machine_text(machine));
    return machine;
  }

  const Scratch cache_;
  testing::Environment environment_;
};

}  // namespace shardwise::cli
