// What the products of one rank make and drop again, in forward and in backward.
#pragma once
#include "shardwise/plan/memory.h"
#include "shardwise/plan/sizes.h"
#include "shardwise/plan/wanted.h"

namespace shardwise::plan {

class Passing {
 public:
  Passing(const Workload& workload, int rank) : workload_(workload), sizes_(workload, rank) {}

  const Sizes& sizes() const { return sizes_; }

  /// A row-parallel product's term and, where it is cut along the sequence, the rank's part of the sum.
  Entries row_forward() const;
  /// That sum on its way into the stream.
  Entries summed() const;

  /// A norm's two gradients: what the column-parallel product after it made, and its own.
  Entries norm_backward() const;
  /// Column-parallel, h → `out` features: dX is a sum's term until it is reduced.
  Entries column_backward(int64_t out, const Wanted& wanted) const;
  /// Row-parallel, `in` → h features; the stream's gradient may be needed after it, too.
  Entries row_backward(int64_t in, const Wanted& wanted, bool keeps_stream) const;
  /// The stream's gradient, where somebody waits for it.
  Entries stream_gradient(bool is_kept, const std::string& name = "stream's gradient") const;

 private:
  bool is_cut() const { return workload_.tp > 1 && workload_.stream == Stream::tp_sp; }
  /// Weight gradients of 16-bit models multiply copies, of one rank's rows at a time under TP+SP.
  int64_t factors(int64_t features_of_both) const;

  const Workload& workload_;
  Sizes sizes_;
};

/// `entries` and then `more`.
Entries both(Entries entries, const Entries& more);

}  // namespace shardwise::plan
