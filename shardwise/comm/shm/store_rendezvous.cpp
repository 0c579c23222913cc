#include "shardwise/comm/shm/store_rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/comm/node.h"

namespace shardwise::comm::shm {
namespace {

std::string random_name() {
  std::random_device random;
  return fmt::format("torch/{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// What ranks that can meet have in common.
std::string own_place() {
  return fmt::format("{:016x} {}", own_node(), getuid());
}

/// The same for people.
std::string own_address() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return fmt::format("{} (pid {}, user {})", name, getpid(), getuid());
}

struct Card {
  std::string place, address, job;  // a line each; rank 0 alone names the job

  explicit Card(const std::string& text) {
    std::istringstream lines(text);
    std::getline(lines, place) && std::getline(lines, address) && std::getline(lines, job);
  }
};

/// What each rank has put into the store, by rank. Errors: base::CommError naming who has not.
std::vector<Card> read_cards(c10d::Store& store, const std::vector<std::string>& keys,
                             const Options& options) {
  try {
    store.wait(keys, options.timeout);
  } catch (const c10::DistStoreError&) {
    const auto is_missing = [&](const std::string& key) { return !store.check({key}); };
    const int missing = int(std::find_if(keys.begin(), keys.end(), is_missing) - keys.begin());
    const double limit_s = std::chrono::duration<double>(options.timeout).count();
    if (missing < options.size) {  // and has not come just now
      throw base::CommError({"connect", options.rank, missing, 0, limit_s, limit_s},
                            fmt::format("did not come: rank {}", missing));
    }
  }
  std::vector<Card> cards;
  for (const std::string& key : keys) cards.emplace_back(store.get_to_str(key));
  return cards;
}

/// Rank 0's name for the meeting. Each rank counts its visits, so that a store that served an earlier group
/// (the program has destroyed it and starts again) gives no name of that one.
std::string agree_on_job(c10d::Store& store, const Options& options) {
  const int64_t visit = store.add(fmt::format("shardwise/visits/{}", options.rank), 1);
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(fmt::format("shardwise/{}/{}", visit, rank));
  store.set(keys[size_t(options.rank)],
            own_place() + "\n" + own_address() + "\n" + (options.rank == 0 ? random_name() : ""));

  const std::vector<Card> cards = read_cards(store, keys, options);
  for (size_t rank = 1; rank < cards.size(); ++rank) {
    TORCH_CHECK_VALUE(cards[rank].place == cards[0].place,
                      "connect: shared memory joins ranks of one host, namespace and user; got rank 0 on ",
                      cards[0].address, ", rank ", rank, " on ", cards[rank].address);
  }
  return cards[0].job;
}

}  // namespace

Meeting rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  Options options("", rank, size);
  options.timeout = timeout;
  check_options(options);
  options.job = agree_on_job(store, options);
  return meet(options);
}

}  // namespace shardwise::comm::shm
