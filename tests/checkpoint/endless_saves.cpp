// The program that save_test kills: `endless_saves DIR` prints a line, then saves the fixture's model in DIR
// until it is killed. A fork of the test would not do: ThreadSanitizer allows it no threads, and a save
// starts one.
#include <iostream>

#include "shardwise/checkpoint/checkpoint.h"
#include "tests/checkpoint/fixture.h"

int main(int, char** argv) {
  using namespace shardwise::testing;
  const auto config = uneven_config();
  const FullState full = full_state(config, at::kFloat, /*seed=*/1);
  RankState rank(config, shardwise::comm::Group(), full);
  fill_(rank, full);
  std::cout << "saving" << std::endl;
  // Saves every step twice: first as a new one, which prunes the previous one, then as a replacement.
  for (int64_t saves = 0;; ++saves) {
    rank.state.step = 2 + saves / 2;
    shardwise::checkpoint::save(argv[1], rank.weights, rank.state, /*keep=*/1);
  }
}
