// Collectives of ranks on several hosts, as many on each: shared memory inside a host, MPI across.
//
// all_reduce: a reduce_scatter inside each host; of every slice, the sum over the hosts by those who hold its
// terms, one rank a host; an all_gather inside. Of n bytes, (hosts − 1)/hosts · 2n cross between a host and
// the others, where flat messages would be as many times more as a host has ranks.
// A host's terms are added in the order of its ranks, the hosts' sums in the order of hosts; fp16 and bf16
// stay fp32 until the end and are rounded once, for which their terms cross in twice their bytes: 3n in
// place of 2n for an all_reduce, 2n in place of n for a reduce_scatter. Every rank gets the same bits; other
// bits, by rounding, than in flat order. What gains nothing by it (few bytes, other reductions than sums)
// goes flat.
#pragma once
#include <memory>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/comm/mpi/transport.h"

namespace shardwise::comm::mpi {

/// The ranks of a group by host, hosts in the order of their lowest ranks.
struct Hosts {
  std::vector<std::vector<int>> ranks;
  int own = 0;    // of this rank
  int local = 0;  // this rank, among those of its host
  static Hosts of(const Meeting& meeting);
  int count() const { return static_cast<int>(ranks.size()); }
  int local_count() const { return static_cast<int>(ranks[size_t(own)].size()); }
  bool is_even() const;
};

/// The ranks of this host, in their order, by shared memory.
Group join_host(const Options& options, const Hosts& hosts);

/// The forms that it does not override are flat.
class Hierarchical final : public Transport {
 public:
  Hierarchical(const Options& options, Meeting meeting, Hosts hosts);

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void limit_collectives(std::chrono::milliseconds limit) override;

 private:
  void reduce_part(at::Tensor& part, Reduce reduce);
  /// Sums the hosts' terms in `sum`, cut as `sizes` say; gives this host's part.
  at::Tensor sum_across(const at::Tensor& sum, const std::vector<int64_t>& sizes, Reduce reduce);
  /// Of the ranks that hold place `local` on their hosts, what `pieces` holds for them.
  std::vector<int64_t> column_sizes(const Tensors& pieces, int local) const;
  int64_t largest_column(const Tensors& pieces) const;
  template <class Call>
  void inside(const Call& call);
  template <class Call>
  void across(const Call& call);

  Group inside_;
  Hosts hosts_;
  Team column_;  // of every host, the rank in this one's place
};

}  // namespace shardwise::comm::mpi
