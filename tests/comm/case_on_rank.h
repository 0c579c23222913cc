// A case of a collective call on one rank: its inputs and outputs, and the checks after the call.
#pragma once
#include <ATen/ops/cat.h>

#include <stdexcept>

#include "tests/comm/collective_calls.h"

namespace shardwise::testing {

/// A case on one rank: creates inputs and outputs, and checks them after the call.
class CaseOnRank {
 public:
  explicit CaseOnRank(const Case& c)
      : c_(c),
        split_(base::Split::even("grid", c.even ? (c.numel + size() - 1) / size() * size() : c.numel, size(),
                                 c.even ? 1 : c.numel / (2 * size()) + 1)),
        group_(c.use_heap ? c.at.group : c.at.group.without_symmetric_heap()) {}

  int rank() const { return c_.at.backend->getRank(); }
  int size() const { return c_.at.backend->getSize(); }
  int root() const { return int(c_.numel % size()); }
  comm::shm::Backend& backend() const { return *c_.at.backend; }
  const comm::Group& group() const { return group_; }
  const base::Split& split() const { return split_; }
  comm::Reduce reduce() const { return c_.content.reduce; }

  base::Range full() const { return {0, split_.size()}; }
  base::Range shard() const { return split_.range(rank()); }
  /// Returns the elements that `from` sends to `to`; every rank sends and receives the same total.
  base::Range between(int from, int to) const { return split_.range((from + to) % size()); }

  at::Tensor message_of(int number, base::Range range) const { return message(c_.content, number, range); }
  at::Tensor sum(base::Range range) const { return reduced_message(c_.content, range); }

  /// Returns an input in the case's layout.
  at::Tensor input(int number, base::Range range) {
    inputs_.push_back(
        {with_layout(c_.at.group, message_of(number, range), c_.layout), message_of(number, range)});
    return inputs_.back().first;
  }
  at::Tensor output(base::Range range) const { return with_layout(c_.at.group, unwritten(range), c_.layout); }
  /// Returns the memory of an output before the call.
  at::Tensor unwritten(base::Range range) const { return at::full({range.size()}, 77, c_.content.dtype); }
  /// Returns a copy of `x` that asynchronous calls accept.
  at::Tensor allocated_by_group(const at::Tensor& x) const {
    return group_.empty(x.sizes(), x.scalar_type()).copy_(x);
  }
  /// Returns a contiguous output, for calls that need one.
  at::Tensor contiguous_output(base::Range range) const {
    const bool in_heap = c_.layout == InputLayout::in_heap || c_.layout == InputLayout::strided_in_heap;
    return with_layout(c_.at.group, unwritten(range),
                       in_heap ? InputLayout::in_heap : InputLayout::unregistered);
  }

  void expect(const at::Tensor& result, const at::Tensor& expected, const char* what = "the result") const {
    const bool is_equal = result.defined() && result.scalar_type() == expected.scalar_type() &&
                          result.sizes() == expected.sizes() && at::equal(result, expected);
    if (!is_equal) throw std::runtime_error(std::string(what) + " differs from the expected values");
  }
  void expect_inputs_unchanged() const {
    for (const auto& [x, before] : inputs_) expect(x, before, "an input after the call");
  }
  /// Overwrites the inputs, as callers may after the call: a peer that still reads them gets a wrong result.
  void overwrite_inputs() {
    expect_inputs_unchanged();
    for (auto& [x, before] : inputs_) x.fill_(99);
  }

 private:
  const Case& c_;
  base::Split split_;
  comm::Group group_;
  std::vector<std::pair<at::Tensor, at::Tensor>> inputs_;
};

/// Returns the concatenation of the ranks' shards.
inline at::Tensor gathered(const CaseOnRank& c) {
  std::vector<at::Tensor> pieces;
  for (int peer = 0; peer < c.size(); ++peer) pieces.push_back(c.message_of(peer, c.split().range(peer)));
  return at::cat(pieces);
}

/// Returns a call that `check` runs and checks.
inline CollectiveCall call(const char* name, CollectiveCall::Traits traits, void (*check)(CaseOnRank&)) {
  return {name, traits, [check](const Case& one) {
            CaseOnRank c(one);
            check(c);
          }};
}

/// The calls of c10d's interface.
std::vector<CollectiveCall> c10d_calls();

}  // namespace shardwise::testing
