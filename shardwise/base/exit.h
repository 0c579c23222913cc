// The end of a process.
#pragma once

namespace shardwise::base {

/// Flushes the standard streams and ends the process. Skips the libraries' exit handlers: they take 0.1 s,
/// during which the other ranks wait for a failed one.
[[noreturn]] void exit_quickly(int exit_code);

}  // namespace shardwise::base
