// A checkpoint that is being saved while training goes on.
#pragma once
#include <filesystem>
#include <future>
#include <memory>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/directories.h"

namespace shardwise::checkpoint {

/// A checkpoint whose files are written but may not be on the disk yet. Writing copies weights and state into
/// the system's page cache, as fast as memory; the disk then takes them from there while the weights change.
/// This needs no memory of the process, and blocks only where the system has no room for unsynced files.
class PendingSave {
 public:
  /// Collective. Writes the files of DIR/step-N under a temporary name, as they are at the return, and begins
  /// to sync them. A failure on one rank is an error on all, which leaves `dir` as it was. `saving`: as in
  /// save.
  PendingSave(const std::filesystem::path& dir, const model::DecoderWeights& weights, const TrainState& state,
              int64_t keep, const AuxiliaryFiles& auxiliary_files = {},
              const std::optional<SaveGroup>& saving = {});
  PendingSave(PendingSave&&) = default;
  PendingSave& operator=(PendingSave&&) = delete;
  /// Waits for this rank's sync. Removes the files unless finish() has published them.
  ~PendingSave() = default;

  /// Collective. Returns whether every rank has synced its files, so that finish() does not wait for a disk.
  /// Cost: one all_gather of one byte for each rank.
  bool is_synced() const;
  /// Collective. Waits until the files are synced, renames their directory to DIR/step-N, points DIR/latest
  /// to it and keeps the `keep` newest step directories (0: all); call it once. A failure on one rank is an
  /// error on all, and the previous checkpoint stays in place.
  void finish();

  /// Returns DIR/step-N.
  std::filesystem::path target() const;

 private:
  comm::Group group_;
  std::filesystem::path dir_;
  int64_t step_, keep_;
  std::unique_ptr<TemporaryDirectory> directory_;  // on rank 0
  std::future<void> synced_;                       // destroyed first: its destructor waits
};

}  // namespace shardwise::checkpoint
