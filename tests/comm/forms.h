// Every form in which a collective can be called, Group's and c10d's, each as one call that is checked
// against closed forms. The grid calls them one by one, the mixed programs (mixed.h) at random.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/comm/shm/backend.h"
#include "tests/comm/closed_form.h"
#include "tests/comm/values.h"

namespace shardwise::testing {

/// One rank's end of a group, in both interfaces.
struct Joined {
  c10::intrusive_ptr<comm::shm::Backend> backend;
  comm::Group group;
};
/// Collective.
Joined join(const comm::shm::Options& options);

struct Case {
  Joined at;
  Content content;
  Layout layout;
  int64_t numel;  // of each rank's message, or of the whole; the next multiple of the ranks where even
  bool even;      // pieces of one size, or of several, empty ones among them
  bool on_shared = true;  // Group's forms: as on shared memory, or as on any other backend
};

struct Form {
  /// What of a case has a meaning for it.
  struct Traits {
    bool reduces = false;     // by other operations than sum, too
    bool cuts = false;        // takes uneven pieces
    bool is_groups = false;   // has a way without shared memory
    bool needs_peer = false;  // has none in a group of one
    bool has_content = true;
    bool is_message = false;  // from rank to rank, which no collective is held against
  };
  std::string name;
  Traits traits;
  /// Collective. Errors: std::runtime_error when a result differs or an input was changed.
  std::function<void(const Case&)> check;
};

const std::vector<Form>& forms();

}  // namespace shardwise::testing
