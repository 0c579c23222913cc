// Replays recorded saves up to every operation and checks what a crash there leaves.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/durability/disk.h"
#include "tests/durability/recording.h"

namespace shardwise::testing {

/// What a reader may find under a final name: a directory, a file or `latest`.
struct Version {
  std::string path;
  Tree tree;  // as of subtree()
};

/// A state in which a crash leaves the tree.
struct CrashState {
  size_t operations;  // that were made before the crash
  bool is_boundary;   // the last of them was no write
  Crash crash;
  Tree tree;
  std::string latest;  // what DIR/latest points to, by its whole path; "" without one
};

/// The operations of one program on a tree, and what they replaced.
class Replay {
 public:
  /// `directory` in the tree has the final names.
  Replay(Tree before, const Operations& operations, std::string directory);

  /// Calls `check` for each state that any of `crashes` leaves after any prefix of the operations, those in
  /// between within a large write included. Expects of each that every final name has one complete version,
  /// and the newest version of `latest` that had been saved, or a later one. Returns the number of states.
  size_t for_each_state(const std::vector<Crash>& crashes,
                        const std::function<void(const CrashState&)>& check) const;

  /// All versions in the order in which they got their names, those from before the operations first.
  const std::vector<Version>& versions() const { return versions_; }

 private:
  void collect(const Disk& disk, const Operation& operation);
  void expect_complete(const CrashState& state, size_t saved) const;
  bool is_version(const std::string& path, const Tree& tree) const;

  Tree before_;
  Operations operations_;
  std::string directory_;
  std::vector<Version> versions_;
  std::vector<std::string> targets_;  // of `latest`, oldest first
  std::vector<size_t> saved_;         // by operation: how many of the targets a crash must not lose
  std::set<std::string> at_end_;      // the final names after all operations
};

}  // namespace shardwise::testing
