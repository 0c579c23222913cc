// What c10d's forms come down to (backend.h): one set of collectives, flat or by host.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/comm/reduction.h"

namespace shardwise::comm::mpi {

/// Arguments are checked. CPU tensors of any strides; `pieces[r]` belongs to rank r, and lists are read at
/// the root only where there is one. Every rank ends with the same bits. Errors: base::CommError;
/// c10::ValueError for a dtype that a reduction does not take.
class Collectives {
 public:
  using Tensors = std::vector<at::Tensor>;
  virtual ~Collectives() = default;
  virtual void broadcast_(at::Tensor& x, int root) = 0;
  virtual void all_reduce_(at::Tensor& x, Reduce reduce) = 0;
  virtual void all_gather(Tensors& pieces, const at::Tensor& shard) = 0;
  virtual void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void leave() = 0;
};

}  // namespace shardwise::comm::mpi
