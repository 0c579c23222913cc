#include "tests/comm/mixed.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <thread>

#include "shardwise/comm/mesh.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {

using comm::Mesh;
using comm::shm::ConnectOptions;

Groups connect_world(const ConnectOptions& options) {
  return {connect_test_group(options)};
}

Groups connect_mesh(const ConnectOptions& options) {
  Groups groups = connect_world(options);
  const int tp = options.size % 2 == 0 ? 2 : options.size;
  const auto connect = [&](const std::string& axis, const std::vector<int>& ranks) {
    ConnectOptions part = options;
    part.job += axis + std::to_string(ranks.front());
    part.rank = int(std::ranges::find(ranks, options.rank) - ranks.begin());
    part.size = int(ranks.size());
    if (options.size > 1) part.part = {groups.front().group, ranks};
    groups.push_back(connect_test_group(part));
    return groups.back().group;
  };
  const Mesh mesh({{"dp", options.size / tp}, {"tp", tp}}, options.rank, options.size, connect);
  return groups;
}

Mixed::Mixed(const Groups& groups, unsigned seed, Calls calls, int64_t largest)
    : groups_(groups),
      largest_(largest),
      plan_(seed),
      delays_(seed * 31 + unsigned(groups.front().backend->getRank())) {
  std::ranges::copy_if(collective_calls(), std::back_inserter(calls_), [&](const CollectiveCall& call) {
    return calls == Calls::all || !call.traits.is_point_to_point;
  });
}

void Mixed::run(int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) step();
}

void Mixed::sleep_randomly() {
  if (delays_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays_() % 200));
}

Mixed::Drawn Mixed::draw() {
  const TestGroup& at = groups_[plan_() % groups_.size()];
  const CollectiveCall& call = calls_[plan_() % calls_.size()];
  Content content{kDtypes[plan_() % std::size(kDtypes)], comm::Reduce::sum, at.backend->getSize()};
  const comm::Reduce reduce = kReduces[plan_() % std::size(kReduces)];
  if (call.traits.reduces && supports(reduce, content.dtype)) content.reduce = reduce;
  const InputLayout layout = kInputLayouts[plan_() % std::size(kInputLayouts)];
  const int64_t numel = int64_t(plan_() % (plan_() % 4 == 0 ? unsigned(largest_) : 700));
  const bool is_even = !call.traits.supports_uneven || plan_() % 2 == 0;
  const bool use_heap = !call.traits.is_group_call || plan_() % 2 == 0;
  return {call, {at, content, layout, numel, is_even, use_heap}};
}

void Mixed::step() {
  const Drawn next = draw();
  if (next.call.traits.needs_peer && next.arguments.content.ranks == 1) return;
  const CollectiveCall::Traits& traits = next.call.traits;
  std::string& deferring = deferring_[next.arguments.at.backend.get()];
  call_ = deferring.empty() ? next.call.name : deferring + ", then " + next.call.name;
  if (!traits.is_point_to_point)
    deferring = traits.is_deferred && next.arguments.use_heap ? next.call.name : "";
  sleep_randomly();
  try {
    next.call.check(next.arguments);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(next.call.name + " of " + std::to_string(next.arguments.numel) + " " +
                             c10::toString(next.arguments.content.dtype) + ": " + error.what());
  }
}

namespace {

volatile std::sig_atomic_t is_asked_to_end = 0;

/// Returns whether one rank is asked to end. Collective.
bool is_any_asked_to_end(const comm::Group& group) {
  const at::Tensor asked = at::full({1}, int64_t{is_asked_to_end}, at::kLong);
  return group.all_reduce(asked, comm::Reduce::max).item<int64_t>() == 1;
}

}  // namespace

void run_mixed(const WorkerPlace& place, std::istream& words) {
  constexpr int64_t kInterval = 50;
  unsigned seed = 0;
  words >> seed;
  ::signal(SIGTERM, [](int) { is_asked_to_end = 1; });
  const Groups groups = connect_mesh(options(place.job, place.rank, place.size, place.timeout_ms));
  Mixed mixed(groups, seed);
  for (int64_t step = 0; !is_any_asked_to_end(groups.front().group); step += kInterval) {
    std::cout << "step " << step << std::endl;
    mixed.run(kInterval);
  }
  std::cout << "done" << std::endl;
}

}  // namespace shardwise::testing
