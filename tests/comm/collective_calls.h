// Every collective of Group and of c10d's interface, each as one call whose result is checked against
// expected values. grid_test.cpp runs them one by one, the random programs (mixed.h) in random order.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/comm/shm/backend.h"
#include "tests/comm/closed_form.h"
#include "tests/comm/values.h"

namespace shardwise::testing {

/// One rank's group, through both interfaces.
struct TestGroup {
  c10::intrusive_ptr<comm::shm::Backend> backend;
  comm::Group group;
};
/// Connects the group of `options`. Collective.
TestGroup connect_test_group(const comm::shm::ConnectOptions& options);

struct Case {
  TestGroup at;
  Content content;
  InputLayout layout;
  int64_t numel;         // of each rank's message, or of the full one; rounded up to a multiple of t if even
  bool even;             // equal piece sizes, or different ones, including empty pieces
  bool use_heap = true;  // Group's calls: with the symmetric heap, or without it
};

struct CollectiveCall {
  /// The properties of a case that the call supports.
  struct Traits {
    bool reduces = false;            // has reductions other than sum
    bool supports_uneven = false;    // accepts pieces of different sizes
    bool is_group_call = false;      // runs with and without the symmetric heap
    bool needs_peer = false;         // does not run in a group of one
    bool has_content = true;         // moves data
    bool is_deferred = false;        // its collective is completed by a later one of another kind
    bool is_point_to_point = false;  // sends from rank to rank, without a check that all ranks call the same
  };
  std::string name;
  Traits traits;
  /// Runs the call and checks the result. Collective. Errors: std::runtime_error if a result differs or an
  /// input was changed.
  std::function<void(const Case&)> check;
};

const std::vector<CollectiveCall>& collective_calls();

}  // namespace shardwise::testing
