// The handle of an asynchronous all_reduce.
#pragma once

namespace shardwise::comm {

/// An in-flight all_reduce that Group::all_reduce_async_ started. Until `wait`, other collectives of the
/// group may be called, the same ones on all ranks.
class Work {
 public:
  virtual ~Work() = default;
  /// Completes the all_reduce in place. Collective; call it once. Errors: base::CommError, or the backend's.
  virtual void wait() = 0;
};

}  // namespace shardwise::comm
