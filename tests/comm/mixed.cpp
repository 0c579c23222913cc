#include "tests/comm/mixed.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/mesh.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"

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
    groups.push_back(connect_test_group(part));
    return groups.back().group;
  };
  Mesh mesh({{"dp", options.size / tp}, {"tp", tp}}, options.rank, options.size, connect);
  mesh.group("dp");
  mesh.group("tp");
  return groups;
}

Mixed::Mixed(const Groups& groups, unsigned seed, Calls calls)
    : groups_(groups), plan_(seed), delays_(seed * 31 + unsigned(groups.front().backend->getRank())) {
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
  const int64_t numel = int64_t(plan_() % (plan_() % 4 == 0 ? unsigned(kLargest) : 700));
  const bool is_even = !call.traits.supports_uneven || plan_() % 2 == 0;
  const bool use_heap = !call.traits.is_group_call || plan_() % 2 == 0;
  return {call, {at, content, layout, numel, is_even, use_heap}};
}

void Mixed::step() {
  const Drawn next = draw();
  if (next.call.traits.needs_peer && next.arguments.content.ranks == 1) return;
  sleep_randomly();
  try {
    next.call.check(next.arguments);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(next.call.name + " of " + std::to_string(next.arguments.numel) + " " +
                             c10::toString(next.arguments.content.dtype) + ": " + error.what());
  }
}

namespace {

/// Sends this process a signal at a random time of a program: after a delay into a step that the seed draws.
class RandomSignal {
 public:
  RandomSignal(int signal, unsigned seed, int64_t steps) : signal_(signal) {
    std::mt19937 random(seed);
    if (signal != 0) step_ = steps / 4 + int64_t(random()) % (steps / 2);
    delay_ = std::chrono::microseconds(random() % 600);
  }
  void before(int64_t step) const {
    if (step != step_) return;
    std::thread([signal = signal_, delay = delay_] {
      std::this_thread::sleep_for(delay);
      kill(getpid(), signal);
    }).detach();
  }

 private:
  int signal_;
  int64_t step_ = -1;
  std::chrono::microseconds delay_;
};

void abort_all(const Groups& groups, const std::string& reason) {
  for (const TestGroup& group : groups) group.backend->comm::C10dBackend::abort(reason);
}

volatile std::sig_atomic_t is_asked_to_end = 0;

/// The steps of a program: a given number, or without end until one rank is asked to end.
class Steps {
 public:
  Steps(int64_t count, const comm::Group& group) : count_(count), group_(group) {
    if (count_ == 0) ::signal(SIGTERM, [](int) { is_asked_to_end = 1; });
  }
  bool goes_on(int64_t step) {
    constexpr int64_t kInterval = 50;
    if (count_ > 0) return step < count_;
    if (step % kInterval != 0) return true;
    std::cout << "step " << step << std::endl;
    const at::Tensor asked = at::full({1}, int64_t{is_asked_to_end}, at::kLong);
    return group_.all_reduce(asked, comm::Reduce::max).item<int64_t>() == 0;
  }

 private:
  int64_t count_;
  comm::Group group_;
};

}  // namespace

void run_mixed(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int64_t steps = 0;
  std::string which;
  int victim = -1, signal = 0;
  words >> seed >> steps >> which >> victim >> signal;
  connect_to_workers(place.job + "-first", place.rank, place.size, place.timeout_ms);
  const ConnectOptions rank_options = options(place.job, place.rank, place.size, place.timeout_ms);
  const Groups groups = which == "mesh" ? connect_mesh(rank_options) : connect_world(rank_options);
  Mixed mixed(groups, seed, which == "collectives" ? Mixed::Calls::collectives : Mixed::Calls::all);
  const RandomSignal random_signal(signal, seed, steps);
  Steps all(steps, groups.front().group);
  try {
    for (int64_t step = 0; all.goes_on(step); ++step) {
      if (place.rank == victim) random_signal.before(step);
      mixed.step();
    }
    std::cout << "done" << std::endl;
  } catch (const base::CommError& error) {
    std::cout << base::one_line(error) << std::endl;
    abort_all(groups, base::one_line(error));
  } catch (const std::runtime_error& error) {
    std::cout << "wrong: " << error.what() << std::endl;
    abort_all(groups, error.what());
  }
}

}  // namespace shardwise::testing
