#include "shardwise/parallel/verify.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <cstring>
#include <numeric>

#include "shardwise/base/hash.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/parallel/replicas.h"

namespace shardwise::parallel {

using at::Tensor;

namespace {

/// One value that several ranks hold.
struct Replica {
  const Parameter* parameter;
  const char* which;  // "" or "'s gradient"
  std::vector<int> holders;
  uint64_t hash;  // 0 on a rank that does not hold it
};

uint64_t hash_of_bits(const Tensor& x) {
  const Tensor dense = x.detach().contiguous().cpu();
  return base::hash_of({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
}

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

const char* suffix(Held held) {
  return held == Held::weights ? "" : "'s gradient";
}

const Tensor& tensor_of(const Parameter& parameter, Held held) {
  return held == Held::weights ? parameter.value : parameter.main_grad;
}

/// Appends the replicas of `parameter`.
void append_replicas_of(const Parameter& parameter, Held held, const comm::Group& group,
                        std::vector<Replica>& replicas) {
  const Tensor& x = tensor_of(parameter, held);
  const char* const which = suffix(held);
  if (!x.defined()) return;
  if (parameter.rule.is_replicated()) {
    replicas.push_back({&parameter, which, all_ranks(group.size()), hash_of_bits(x)});
    return;
  }
  for (const ReplicatedSlice& slice : replicated_slices(parameter.rule, group.rank())) {
    const uint64_t hash =
        slice.is_held ? hash_of_bits(x.narrow(parameter.rule.dim, slice.local_begin, slice.size)) : 0;
    replicas.push_back({&parameter, which, slice.holders, hash});
  }
}

}  // namespace

void verify_equal(const Tensor& x, const char* what, const Step& step) {
  if (step.verify == Verify::off || step.group.size() == 1) return;
  const Tensor local = x.detach().contiguous().to(step.group.device());
  Tensor expected = local.clone();
  step.group.broadcast_(expected, /*root=*/0);
  const Tensor mine = local.cpu(), first = expected.cpu();
  const bool differs = std::memcmp(mine.const_data_ptr(), first.const_data_ptr(), mine.nbytes()) != 0;
  const Tensor differing =
      step.group.all_reduce(at::full({1}, differs ? 1 : 0, local.options().dtype(at::kLong)));
  TORCH_CHECK(differing.item<int64_t>() == 0, "verify: ", what,
              " must be equal on every rank; it differs from rank 0's on ", differing.item<int64_t>(), " of ",
              step.group.size(), " ranks [SW0348]");
}

void verify_equal(const GatheredRows& rows, const char* what, const Step& step) {
  if (step.verify == Verify::off || step.group.size() == 1) return;
  std::vector<Tensor> by_rank;
  for (int rank = 0; rank < rows.ranks(); ++rank) by_rank.push_back(rows.matrix(rank));
  verify_equal(at::cat(by_rank), what, step);
}

namespace {

/// Compares the hashes of each replica over its holders. `holder`: what they are in the message. Collective.
void check_equal(const std::vector<Replica>& replicas, const char* holder, const comm::Group& group) {
  std::vector<uint64_t> local;
  for (const Replica& replica : replicas) local.push_back(replica.hash);
  const std::vector<uint64_t> all = comm::gather_values(local, group);
  const auto hash_on = [&](int rank, size_t i) { return all[size_t(rank) * local.size() + i]; };
  for (size_t i = 0; i < replicas.size(); ++i) {
    const auto& [parameter, which, holders, hash] = replicas[i];
    for (const int rank : holders) {
      TORCH_CHECK(hash_on(rank, i) == hash_on(holders[0], i), "verify: ", parameter->name, which,
                  " must be equal on every rank that holds it; ", holder, " ", rank, "'s differs from ",
                  holder, " ", holders[0], "'s [SW0347]");
    }
  }
}

}  // namespace

void verify_replicas(const ParamSpecs& specs, Held held, const comm::Group& group) {
  if (group.size() == 1) return;
  std::vector<Replica> replicas;
  for (const ParamSpec& spec : specs) append_replicas_of(*spec.parameter, held, group, replicas);
  check_equal(replicas, "rank", group);
}

void verify_data_replicas(const ParamSpecs& specs, Held held, const comm::Group& group) {
  if (group.size() == 1) return;
  std::vector<Replica> replicas;
  for (const ParamSpec& spec : specs) {
    const Tensor& x = tensor_of(*spec.parameter, held);
    if (x.defined())
      replicas.push_back({spec.parameter.get(), suffix(held), all_ranks(group.size()), hash_of_bits(x)});
  }
  check_equal(replicas, "dp rank", group);
}

}  // namespace shardwise::parallel
