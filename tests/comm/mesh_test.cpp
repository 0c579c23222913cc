// Coordinates, rank lists and groups of a mesh's axes.
#include "shardwise/comm/mesh.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "shardwise/comm/shm/shm.h"
#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::mesh_test {
namespace {

Group no_connection(const std::string&, const std::vector<int>&) {
  return Group();
}

TEST(Mesh, TpGroupsAreContiguous) {
  for (int rank = 0; rank < 16; ++rank) {
    const Mesh mesh({{"dp", 4}, {"tp", 4}}, rank, 16, no_connection);
    const int first = rank / 4 * 4;
    EXPECT_EQ(mesh.ranks("tp"), (std::vector<int>{first, first + 1, first + 2, first + 3}));
    EXPECT_EQ(mesh.coordinate("tp"), rank % 4);
    const int column = rank % 4;
    EXPECT_EQ(mesh.ranks("dp"), (std::vector<int>{column, column + 4, column + 8, column + 12}));
    EXPECT_EQ(mesh.coordinate("dp"), rank / 4);
  }
}

TEST(Mesh, TheMiddleAxisOfThreeIsStrided) {
  const Mesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 2}}, /*rank=*/9, 12, no_connection);
  EXPECT_EQ(mesh.coordinate("pp"), 1);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 1);
  EXPECT_EQ(mesh.ranks("dp"), (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(mesh.ranks("pp"), (std::vector<int>{3, 9}));
}

TEST(Mesh, GroupsAreConnectedOnFirstUseAndCached) {
  int connections = 0;
  Mesh mesh({{"dp", 2}, {"tp", 2}}, 3, 4, [&](const std::string& axis, const std::vector<int>& ranks) {
    ++connections;
    EXPECT_EQ(axis, "dp");
    EXPECT_EQ(ranks, (std::vector<int>{1, 3}));
    return Group();
  });
  EXPECT_EQ(connections, 0);
  mesh.group("dp");
  mesh.group("dp");
  EXPECT_EQ(connections, 1);
}

TEST(Mesh, InvalidAxesAndRanksFail) {
  using Axes = std::vector<Mesh::Axis>;
  const auto make = [](Axes axes, int rank, int world) {
    return Mesh(std::move(axes), rank, world, no_connection);
  };
  EXPECT_THROW(make({{"tp", 4}}, 0, 2), c10::ValueError);
  EXPECT_THROW(make({{"tp", 0}}, 0, 0), c10::ValueError);
  EXPECT_THROW(make({{"tp", 2}, {"tp", 2}}, 0, 4), c10::ValueError);
  EXPECT_THROW(make({{"tp", 2}}, 2, 2), c10::ValueError);
  EXPECT_THROW(make({{"tp", 2}}, 0, 2).size("pp"), c10::ValueError);
}

TEST(Mesh, GroupsReduceOverTheRanksOfTheirAxis) {
  testing::on_ranks(4, [](Group world) {
    Mesh mesh(
        {{"dp", 2}, {"tp", 2}}, world.rank(), 4, [&](const std::string& axis, const std::vector<int>& ranks) {
          const int coordinate = int(std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin());
          const std::string job = "mesh-" + std::to_string(getpid()) + axis + std::to_string(ranks[0]);
          return shm::connect({job, coordinate, int(ranks.size())});
        });
    const auto sum = [&](const std::string& axis) {
      return mesh.group(axis).all_reduce(at::full({1}, float(1 << world.rank()))).item<float>();
    };
    EXPECT_EQ(sum("tp"), world.rank() < 2 ? 3 : 12);
    EXPECT_EQ(sum("dp"), world.rank() % 2 == 0 ? 5 : 10);
  });
}

}  // namespace
}  // namespace shardwise::comm::mesh_test
