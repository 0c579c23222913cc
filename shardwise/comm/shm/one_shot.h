// Up to how many bytes an all_reduce goes in one shot (collectives.cpp): measured on this machine, or tabled.
//
// In one shot every rank reads every input: one synchronization. In two it reads and writes its slice of all
// of them: fewer lines travel between the cores, but the ranks wait for each other twice. Which is faster
// depends on whether the ranks have a core each. All ranks of a group take the limit of its rank 0.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::comm::shm {

struct RanksOnCores {
  int ranks = 0;
  bool core_each = false;  // otherwise they take turns, and every wait is a change of threads
  bool operator==(const RanksOnCores&) const = default;
};

struct OneShotLimit {
  enum class From : uint8_t { table, measured, given };
  RanksOnCores on;
  int64_t bytes = 0;  // of the largest message; 0: none that has any goes in one shot
  From from = From::table;
  bool operator==(const OneShotLimit&) const = default;
};

/// "table", "measured" or "given".
std::string_view name(OneShotLimit::From from);

/// The limit where nothing was measured.
OneShotLimit tabled_one_shot_limit(const RanksOnCores& on);
/// What was kept for as many ranks on this machine, else the table's; a warning says why what is there is not
/// used.
OneShotLimit one_shot_limit(const RanksOnCores& on);

/// Where the measured limit is kept: shardwise/comm-<hash of the processor's name, the ranks and their
/// cores> in $XDG_CACHE_HOME or $HOME/.cache; "" where neither is an absolute path.
std::string one_shot_file(const RanksOnCores& on);
/// Keeps a measured limit for the groups that meet from now on, in place of an earlier one; one_shot_file
/// must name a place. Errors: base::FileError.
void keep_one_shot_limit(const RanksOnCores& on, int64_t bytes);

}  // namespace shardwise::comm::shm
