#include "tests/support/ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/comm/shm/shm.h"

namespace shardwise::testing {
namespace {

using Body = std::function<void(comm::Group)>;

class Ranks {
 public:
  explicit Ranks(int size) : barrier_(size + 1) {
    for (int rank = 0; rank < size; ++rank) threads_.emplace_back([this, rank, size] { serve(rank, size); });
  }
  ~Ranks() {
    body_ = nullptr;
    barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(const Body& body) {
    body_ = &body;
    barrier_.arrive_and_wait();
    barrier_.arrive_and_wait();
    if (first_error_) {
      ++job_;
      std::rethrow_exception(std::exchange(first_error_, nullptr));
    }
  }

 private:
  void serve(int rank, int size) {
    at::set_num_threads(1);
    comm::Group group;
    int connected = -1;
    for (barrier_.arrive_and_wait(); body_ != nullptr; barrier_.arrive_and_wait()) {
      try {
        if (std::exchange(connected, job_) != job_) group = connect(rank, size);
        call(group);
      } catch (const std::exception& error) {
        fail(error, group);
      }
      barrier_.arrive_and_wait();
    }
  }

  comm::Group connect(int rank, int size) const {
    comm::shm::ConnectOptions options(
        "test-" + std::to_string(getpid()) + "-" + std::to_string(size) + "-" + std::to_string(job_), rank,
        size);
    options.timeout = std::chrono::seconds(60);
    return comm::shm::connect(options);
  }

  void call(const comm::Group& group) const {
    if (group.has_symmetric_heap()) group.symmetric_heap()->reset_peak();
    (*body_)(group.with_new_counters());
    if (::testing::Test::HasFatalFailure()) throw std::runtime_error("a rank's test assertion failed");
    group.barrier();
  }

  void fail(const std::exception& error, const comm::Group& group) {
    {
      const std::lock_guard lock(mutex_);
      if (!first_error_) first_error_ = std::current_exception();
    }
    group.abort(error.what());
  }

  std::barrier<> barrier_;  // synchronizes the ranks and the caller before and after a body
  const Body* body_ = nullptr;
  int job_ = 0;
  std::mutex mutex_;
  std::exception_ptr first_error_;
  std::vector<std::thread> threads_;
};

}  // namespace

void on_ranks(int ranks, const Body& body) {
  static std::map<int, Ranks> pools;
  pools.try_emplace(ranks, ranks).first->second.run(body);
}

void on_parts(int ranks, const std::function<void(const comm::Group&, const comm::Mesh::Connect&)>& body) {
  static int meshes = 0;
  const int number = ++meshes;
  on_ranks(ranks, [&](const comm::Group& world) {
    const auto connect = [&](const std::string& name, const std::vector<int>& members) {
      if (std::ssize(members) == world.size()) return world;
      if (members.size() == 1) return comm::Group();
      const auto found = std::ranges::find(members, world.rank());
      comm::shm::ConnectOptions options("mesh-" + std::to_string(getpid()) + "-" + std::to_string(number) +
                                            "/" + name + "/" + std::to_string(members[0]),
                                        static_cast<int>(found - members.begin()),
                                        static_cast<int>(members.size()));
      options.timeout = std::chrono::seconds(60);
      options.part = {world, members};
      return comm::shm::connect(options);
    };
    body(world, connect);
  });
}

void on_mesh(int ranks, const MakeMesh& make_mesh, const std::function<void(const comm::Mesh&)>& body) {
  on_parts(ranks, [&](const comm::Group& world, const comm::Mesh::Connect& connect) {
    body(make_mesh(world, connect));
  });
}

}  // namespace shardwise::testing
