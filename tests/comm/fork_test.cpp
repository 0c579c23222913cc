// A fork of a rank: its calls and allocations are errors, its stray writes are faults of its own, and the
// ranks go on.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <iostream>
#include <optional>
#include <thread>

#include "shardwise/base/error.h"
#include "tests/comm/backends.h"
#include "tests/comm/collective_calls.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"

namespace shardwise::testing {
namespace {

const std::chrono::duration<double> kLimit{scaled_s(10)};

constexpr int kCoreDumped = 0x80;  // in waitpid's status

/// Runs `body` in a fork, which exits with what it returns; returns waitpid's status, whether or not the
/// machine keeps core dumps.
int status_of_fork(const std::function<int()>& body) {
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "fork");
  if (child == 0) _exit(body());
  int status = -1;
  const auto start = std::chrono::steady_clock::now();
  while (waitpid(child, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::chrono::steady_clock::now() - start > kLimit) kill(child, SIGKILL);
  }
  return status & ~kCoreDumped;
}

bool ends_with_code(const std::string& code, const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    const std::string line = base::one_line(error);
    if (line.ends_with(code)) return true;
    std::cout << line << std::endl;
    return false;
  }
  std::cout << "no error" << std::endl;
  return false;
}

/// Returns the number of calls that did not throw the error of a fork.
int try_calls(const TestGroup& at) {
  const auto split = base::Split::even("x", 30, 2);
  at::Tensor x = at::full({30}, 1.f);
  Tensors list = {x};
  const std::vector<std::function<void()>> calls = {
      [&] { at.group.all_reduce(x); },
      [&] { at.group.all_reduce_(x); },
      [&] { at.group.all_gather(x.narrow(0, 0, 15), split); },
      [&] { at.group.share_shard(x.narrow(0, 0, 15), split); },
      [&] { at.group.reduce_scatter(x, split); },
      [&] { at.group.fused_all_reduce(x, [](comm::PeerBuffers) {}); },
      [&] { at.group.barrier(); },
      [&] { at.group.send(x, 1); },
      [&] { at.group.recv_(x, 1); },
      [&] { at.backend->allreduce(list, {}); },
      [&] { at.backend->send(list, 1, 0); },
      [&] { at.backend->recv(list, 1, 0); },
      [&] { at.backend->monitoredBarrier({}, true); },
  };
  int wrong = 0;
  for (const auto& call : calls) wrong += !ends_with_code("[SW0575]", call);
  at.group.abort("by a fork");
  at.backend->shutdown();
  return wrong;
}

int use_heap(const TestGroup& at, at::Tensor& x) {
  const int wrong = !ends_with_code("[SW0577]", [&] { at.group.empty({10}, at::kFloat); }) +
                    !ends_with_code("[SW0577]", [&] { at.backend->allocateTensor(10, x.options()); });
  x.reset();  // frees nothing
  return wrong;
}

int write_to(at::Tensor& x) {
  signal(SIGSEGV, SIG_DFL);  // without a sanitizer's report
  x.fill_(77);
  return 0;
}

[[noreturn]] void exit_with_destructors(const TestGroup& at, const at::Tensor& x) {
  static std::optional<TestGroup> group;
  static at::Tensor tensor;
  group = at;
  tensor = x;
  std::exit(0);
}

}  // namespace

// Each fork is followed by a collective of the ranks on the memory that the fork has touched.
void run_fork(const WorkerPlace& place) {
  comm::shm::connect(options(place.job + "-start", place.rank, place.size));
  const TestGroup at = connect_test_group(options(place.job, place.rank, place.size, place.timeout_ms));
  at::Tensor x = at.group.empty({5000}, at::kFloat).fill_(1);
  std::vector<int> statuses;
  const auto fork_and_go_on = [&](const std::function<int()>& body) {
    if (place.rank == 0) statuses.push_back(status_of_fork(body));
    at.group.all_reduce_(x);
    TORCH_CHECK(x.sum().item<float>() == 5000.f * float(1 << statuses.size()) || place.rank != 0, "corrupt");
  };
  fork_and_go_on([&] { return try_calls(at); });
  fork_and_go_on([&] { return use_heap(at, x); });
  fork_and_go_on([&] { return write_to(x); });
  fork_and_go_on([&]() -> int { exit_with_destructors(at, x); });
  std::cout << "done";
  for (const int status : statuses) std::cout << " " << status;
  std::cout << std::endl;
}

}  // namespace shardwise::testing

namespace shardwise::comm::fork_test {
namespace {

using namespace shardwise::testing;

TEST(Fork, OfARankLeavesTheJobAlone) {
  std::vector<Worker> workers = start_workers("fork", 2);
  const std::vector<std::string> outputs = outputs_of(workers);
  EXPECT_NE(outputs[0].find("\ndone 0 0 " + std::to_string(SIGSEGV) + " 0\n"), std::string::npos)
      << outputs[0];
  EXPECT_NE(outputs[1].find("\ndone\n"), std::string::npos) << outputs[1];
}

}  // namespace
}  // namespace shardwise::comm::fork_test
