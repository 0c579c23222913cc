// Programs of random calls over several groups, the same on all ranks by one seed, every result held against
// its closed form (forms.h). How long a rank takes between its calls is its own.
#pragma once
#include <random>

#include "tests/comm/forms.h"

namespace shardwise::testing {

/// The group of all ranks first, then those of a mesh's axes.
using Groups = std::vector<Joined>;

/// Collective: the group of all ranks alone.
Groups join_world(const comm::shm::Options& options);
/// Collective: with the groups of {"dp", "tp"}, tp of two ranks, or of all where their number is odd.
Groups join_mesh(const comm::shm::Options& options);

class Mixed {
 public:
  /// Elements of the largest message.
  static constexpr int64_t kLargest = 8000;

  enum class Calls { all, collectives };

  /// Errors of the calls below: base::CommError; std::runtime_error naming the call whose result is wrong.
  Mixed(const Groups& groups, unsigned seed, Calls calls = Calls::all);
  void run(int64_t steps);
  void step();
  /// Leaves out what the next step would have called.
  void skip() { draw(); }

 private:
  struct Drawn {
    const Form& form;
    Case at;
  };
  Drawn draw();
  void dawdle();

  const Groups& groups_;
  std::vector<Form> forms_;
  std::mt19937 plan_, own_;  // what happens, on all ranks alike; how long it takes
};

}  // namespace shardwise::testing
