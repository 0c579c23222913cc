// Coordinates, rank lists and groups of a mesh's axes.
#include "shardwise/comm/mesh.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardwise/comm/shm/shm.h"
#include "tests/comm/values.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::mesh_test {
namespace {

using Names = Mesh::Names;

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
    EXPECT_EQ(mesh.world_size(), 16);
  }
}

TEST(Mesh, TheMiddleAxisOfThreeIsStrided) {
  const Mesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 2}}, /*rank=*/9, 12, no_connection);
  EXPECT_EQ(mesh.coordinate("pp"), 1);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 1);
  EXPECT_EQ(mesh.ranks("dp"), (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(mesh.ranks("pp"), (std::vector<int>{3, 9}));
  EXPECT_EQ(mesh.coordinate("dp", /*rank=*/4), 2);
}

TEST(Mesh, CombinedAxesSpanTheirProduct) {
  const Mesh::Axes axes{{"pp", 2}, {"dp", 2}, {"cp", 3}, {"tp", 2}};
  const Mesh mesh(axes, /*rank=*/17, 24, no_connection,
                  {{"dp", "cp"}, {"pp", "tp"}, {"pp", "dp", "cp", "tp"}});
  EXPECT_EQ(mesh.ranks(Names{"dp", "cp"}), (std::vector<int>{13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(mesh.ranks(Names{"pp", "tp"}), (std::vector<int>{4, 5, 16, 17}));
  EXPECT_EQ(mesh.ranks(Names{"pp", "dp", "cp", "tp"}).size(), 24U);
}

/// The group of each combination has the ranks that differ along its axes only: of each rank on its own.
TEST(Mesh, RanksAreThoseOfEqualOtherCoordinates) {
  const Mesh::Axes axes{{"pp", 2}, {"dp", 3}, {"cp", 1}, {"tp", 2}};
  for (int rank = 0; rank < 12; ++rank) {
    const Mesh mesh(axes, rank, 12, no_connection);
    for (unsigned chosen = 1; chosen < 16; ++chosen) {
      Names names;
      for (size_t i = 0; i < axes.size(); ++i)
        if (chosen >> i & 1) names.push_back(axes[i].name);
      std::vector<int> expected;
      for (int other = 0; other < 12; ++other) {
        bool is_member = true;
        for (size_t i = 0; i < axes.size(); ++i)
          is_member &=
              (chosen >> i & 1) || mesh.coordinate(axes[i].name, other) == mesh.coordinate(axes[i].name);
        if (is_member) expected.push_back(other);
      }
      EXPECT_EQ(mesh.ranks(names), expected);
    }
  }
}

struct Connected {
  std::string name;
  std::vector<int> ranks;
  bool operator==(const Connected&) const = default;
};

TEST(Mesh, GroupsAreConnectedInOneOrderAndOnceForTheSameRanks) {
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<Connected> all;
    const auto connect = [&](const std::string& name, const std::vector<int>& ranks) {
      all.push_back({name, ranks});
      return Group();
    };
    const Mesh mesh({{"pp", 1}, {"dp", 2}, {"cp", 1}, {"tp", 2}}, rank, 4, connect,
                    {{"dp", "cp"}, {"pp", "dp", "cp", "tp"}});
    const int row = rank / 2 * 2, column = rank % 2;
    EXPECT_EQ(all, (std::vector<Connected>{{"pp", {rank}},
                                           {"dp", {column, column + 2}},
                                           {"tp", {row, row + 1}},
                                           {"pp+dp+cp+tp", {0, 1, 2, 3}}}));
    EXPECT_EQ(&mesh.group("dp"), &mesh.group(Names{"dp", "cp"}));
    EXPECT_EQ(&mesh.group("cp"), &mesh.group("pp"));
    all.clear();
    const Mesh view = mesh.view({{"edp", 2}, {"ep", 2}}, connect);
    EXPECT_EQ(all, std::vector<Connected>());
    EXPECT_EQ(&view.group("ep"), &mesh.group("tp"));
    mesh.view({{"ep", 4}}, connect);
    mesh.view({{"ep", 2}, {"edp", 2}}, connect);
    EXPECT_EQ(all, std::vector<Connected>());
  }
}

TEST(Mesh, RefusesWhatDoesNotFitInOneLine) {
  const auto error_of = [](Mesh::Axes axes, int rank, int world, const std::vector<Names>& combined = {}) {
    return test::error_text<c10::ValueError>(
        [&] { Mesh(std::move(axes), rank, world, no_connection, combined); });
  };
  EXPECT_EQ(error_of({{"tp", 4}}, 0, 2),
            "mesh: the axes' sizes must multiply to the world size; got 4 and 2");
  EXPECT_EQ(error_of({{"tp", 0}}, 0, 0), "mesh: axis tp must be at least 1; got 0");
  EXPECT_EQ(error_of({{"tp", 2}, {"tp", 2}}, 0, 4), "mesh: axis tp must be named once; got it twice");
  EXPECT_EQ(error_of({{"tp", 2}}, 2, 2), "mesh: rank must be in [0, 2); got 2");
  EXPECT_EQ(error_of({{"dp", 2}, {"tp", 2}}, 0, 4, {{"tp", "dp"}}),
            "mesh: axes must be in the mesh's order, each once; got tp+dp");
  EXPECT_EQ(error_of({{"dp", 2}, {"tp", 2}}, 0, 4, {{"dp", "dp"}}),
            "mesh: axes must be in the mesh's order, each once; got dp+dp");
  const Mesh mesh({{"dp", 2}, {"tp", 2}}, 0, 4, no_connection);
  EXPECT_EQ(test::error_text<c10::ValueError>([&] { mesh.size("pp"); }), "mesh: no axis is named pp");
  EXPECT_EQ(test::error_text<c10::ValueError>([&] {
              mesh.group(Names{"dp", "tp"});
            }),
            "mesh: the group of dp+tp must be among those it was made with; got none");
}

TEST(Mesh, GroupsReduceOverTheRanksOfTheirAxes) {
  testing::on_ranks(4, [](Group world) {
    const auto connect = [&](const std::string& name, const std::vector<int>& ranks) {
      if (std::ssize(ranks) == world.size()) return world;
      const int coordinate = int(std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin());
      const std::string job = "mesh-" + std::to_string(getpid()) + name + std::to_string(ranks[0]);
      return shm::connect({job, coordinate, int(ranks.size())});
    };
    const Mesh mesh({{"dp", 2}, {"tp", 2}}, world.rank(), 4, connect, {{"dp", "tp"}});
    const auto sum = [&](const Names& axes) {
      return mesh.group(axes).all_reduce(at::full({1}, float(1 << world.rank()))).item<float>();
    };
    EXPECT_EQ(sum({"tp"}), world.rank() < 2 ? 3 : 12);
    EXPECT_EQ(sum({"dp"}), world.rank() % 2 == 0 ? 5 : 10);
    EXPECT_EQ(sum({"dp", "tp"}), 15);
  });
}

}  // namespace
}  // namespace shardwise::comm::mesh_test
