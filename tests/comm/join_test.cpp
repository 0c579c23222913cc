// Ranks that find their group by where they stand, on one host and on pretended ones.
#include "shardwise/comm/join.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/comm/mesh.h"
#include "tests/comm/threads.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::testing;

Place place_of(int rank, int hosts, const std::string& job) {
  Place place;
  place.by = Place::By::launcher;
  place.rank = rank;
  place.world_size = 4;
  place.hosts = hosts;
  place.host = place.host_of(rank);
  place.job = job;
  return place;
}

Mesh mesh_of(const Place& place) {
  return Mesh({{"dp", 2}, {"tp", 2}}, place.rank, place.world_size,
              [place](const std::string& axis, const std::vector<int>& ranks) {
                return connect(place, axis, ranks, std::chrono::seconds(20));
              });
}

float sum(const Group& group, int rank) {
  return group.all_reduce(at::full({1}, float(1 << rank))).item<float>();
}

TEST(Join, OneHostJoinsEveryAxis) {
  on_threads(4, [](int rank, const std::string& job) {
    const Place place = place_of(rank, /*hosts=*/1, job);
    Mesh mesh = mesh_of(place);
    EXPECT_EQ(sum(mesh.group("tp"), rank), rank < 2 ? 3 : 12);
    EXPECT_EQ(sum(mesh.group("dp"), rank), rank % 2 == 0 ? 5 : 10);
    EXPECT_EQ(sum(connect_all(place), rank), 15);
  });
}

TEST(Join, GroupsAcrossPretendedHostsAreRefused) {
  on_threads(4, [](int rank, const std::string& job) {
    const Place place = place_of(rank, /*hosts=*/2, job);
    Mesh mesh = mesh_of(place);
    EXPECT_EQ(sum(mesh.group("tp"), rank), rank < 2 ? 3 : 12);
    try {
      mesh.group("dp");
      ADD_FAILURE() << "joined";
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(
          base::one_line(error),
          "launch: the ranks of group dp are on one host, as only shared memory joins ranks; got 2 ranks, "
          "of a job on 2 hosts (SHARDWISE_HOSTS)");
    }
    EXPECT_THROW(connect_all(place), c10::ValueError);
  });
}

TEST(Join, OneRankWaitsForNobody) {
  EXPECT_EQ(connect_all(Place()).size(), 1);
  EXPECT_EQ(connect(place_of(3, /*hosts=*/4, "alone"), "tp", {3}).size(), 1);
}

TEST(Join, TheTimeoutIsThatOfTheWaits) {
  const Place place = place_of(0, /*hosts=*/1, new_job());
  try {
    connect_all(place, std::chrono::milliseconds(50));
    ADD_FAILURE() << "joined";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().limit_s, 0.05);
  }
}

}  // namespace
}  // namespace shardwise::comm
