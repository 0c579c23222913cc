// Ctrl-C and SIGTERM in a process that computes: it ends at once, and what it has saved stands.
//
// A launcher looks after its own signals (comm/launch.h).
#pragma once

namespace shardwise::cli {

/// From now on SIGINT and SIGTERM end this process with 128 plus the signal's number, the terminal's line
/// finished first. With `says_so` a line tells why; a rank leaves that to its launcher.
void end_cleanly_on_signals(bool says_so);

}  // namespace shardwise::cli
