// An all_reduce in place that is under way.
#pragma once

namespace shardwise::comm {

/// Made by Group::all_reduce_async_. Between that and `wait`, other collectives of the group may be called,
/// the same ones on all ranks.
class Work {
 public:
  virtual ~Work() = default;
  /// Collective, once: the tensor holds the sum afterward. Errors: base::CommError, or the backend's own.
  virtual void wait() = 0;
};

}  // namespace shardwise::comm
