// Starts the ranks of a job on this host, watches over them, and ends the job as one.
//
// A rank learns its place from environment.h and meets the others through shm/; nothing else passes between
// them and the launcher but signals and standard error.
#pragma once
#include <string>
#include <vector>

namespace shardwise::comm {

/// The exit code of what the caller got wrong.
inline constexpr int kUsageErrorExitCode = 2;
/// The exit code of a rank that did its work and found that something does not hold: no failure, the others
/// finish theirs.
inline constexpr int kCheckFailedExitCode = 3;

/// Runs this program again, once for every rank, and waits until all have ended. Returns the exit code of the
/// job: 0 when every rank returned 0; 3 when one returned 3 and none failed; 2 when one returned 2 (the
/// caller's mistake); 1 for every other failure; 128 plus the signal's number when this process was asked to
/// end by SIGINT, SIGTERM or SIGHUP.
///
/// Rank 0 has this process's standard streams. The others read nothing, what they write to standard output is
/// dropped, and their lines on standard error come out as `[rank 1] line`.
/// The first rank that fails ends the job: the others have a second to say what they waited in (one line
/// each; a stopped one is continued for that), then SIGTERM, then SIGKILL, all in under 2 s; a last line on
/// standard error names the rank and how it ended, unless all returned 2: then they have said what is wrong.
/// Ranks die with this process, however it ends: call it from the main thread, which is the one that they are
/// tied to.
///
/// Errors: c10::ValueError when `ranks` is below 1; c10::Error when the system starts no more processes.
int launch(int ranks, const std::vector<std::string>& argv);

}  // namespace shardwise::comm
