#include "tests/comm/mixed.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/mesh.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"

namespace shardwise::testing {

using comm::Mesh;
using comm::shm::Options;

Groups join_world(const Options& options) {
  return {join(options)};
}

Groups join_mesh(const Options& options) {
  Groups groups = join_world(options);
  const int tp = options.size % 2 == 0 ? 2 : options.size;
  const auto connect = [&](const std::string& axis, const std::vector<int>& ranks) {
    Options part = options;
    part.job += axis + std::to_string(ranks.front());
    part.rank = int(std::ranges::find(ranks, options.rank) - ranks.begin());
    part.size = int(ranks.size());
    groups.push_back(join(part));
    return groups.back().group;
  };
  Mesh mesh({{"dp", options.size / tp}, {"tp", tp}}, options.rank, options.size, connect);
  mesh.group("dp");
  mesh.group("tp");
  return groups;
}

Mixed::Mixed(const Groups& groups, unsigned seed, Calls calls)
    : groups_(groups), plan_(seed), own_(seed * 31 + unsigned(groups.front().backend->getRank())) {
  std::ranges::copy_if(forms(), std::back_inserter(forms_),
                       [&](const Form& form) { return calls == Calls::all || !form.traits.is_message; });
}

void Mixed::run(int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) step();
}

void Mixed::dawdle() {
  if (own_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 200));
}

Mixed::Drawn Mixed::draw() {
  const Joined& at = groups_[plan_() % groups_.size()];
  const Form& form = forms_[plan_() % forms_.size()];
  Content content{kDtypes[plan_() % std::size(kDtypes)], comm::Reduce::sum, at.backend->getSize()};
  const comm::Reduce reduce = kReduces[plan_() % std::size(kReduces)];
  if (form.traits.reduces && takes(reduce, content.dtype)) content.reduce = reduce;
  const Layout layout = kLayouts[plan_() % std::size(kLayouts)];
  const int64_t numel = int64_t(plan_() % (plan_() % 4 == 0 ? unsigned(kLargest) : 700));
  const bool is_even = !form.traits.cuts || plan_() % 2 == 0;
  const bool on_shared = !form.traits.is_groups || plan_() % 2 == 0;
  return {form, {at, content, layout, numel, is_even, on_shared}};
}

void Mixed::step() {
  const Drawn next = draw();
  if (next.form.traits.needs_peer && next.at.content.ranks == 1) return;
  dawdle();
  try {
    next.form.check(next.at);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(next.form.name + " of " + std::to_string(next.at.numel) + " " +
                             c10::toString(next.at.content.dtype) + ": " + error.what());
  }
}

namespace {

/// Sends this process a signal at a moment of a program that its seed decides: some time into some step.
class Blow {
 public:
  Blow(int signal, unsigned seed, int64_t steps) : signal_(signal) {
    std::mt19937 random(seed);
    step_ = steps / 4 + int64_t(random()) % (steps / 2);
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
  int64_t step_;
  std::chrono::microseconds delay_;
};

void abort_all(const Groups& groups, const std::string& reason) {
  for (const Joined& joined : groups) joined.backend->comm::Backend::abort(reason);
}

}  // namespace

void run_mixed(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int64_t steps = 0;
  std::string which;
  int victim = -1, signal = 0;
  words >> seed >> steps >> which >> victim >> signal;
  meet_workers(place.job + "-first", place.rank, place.size, place.timeout_ms);
  const Options meeting = options(place.job, place.rank, place.size, place.timeout_ms);
  const Groups groups = which == "mesh" ? join_mesh(meeting) : join_world(meeting);
  Mixed mixed(groups, seed, which == "collectives" ? Mixed::Calls::collectives : Mixed::Calls::all);
  const Blow blow(signal, seed, steps);
  try {
    for (int64_t step = 0; step < steps; ++step) {
      if (place.rank == victim) blow.before(step);
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
