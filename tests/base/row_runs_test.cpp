// Rows dealt to ranks: each once, in order, cut at the row boundary nearest to an even share.
#include "shardwise/base/row_runs.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace shardwise::base::row_runs_test {
namespace {

using Tensors = std::vector<TensorRows>;

TEST(RowRuns, CutsAtTheNearestRow) {
  const Tensors tensors = {{4, 6}, {3, 1}, {2, 10}};  // 47 elements
  const RowRuns runs = RowRuns::even(tensors, 2);     // 23.5: after the four rows of six
  EXPECT_EQ(runs.elements().range(0), (Range{0, 24}));
  EXPECT_EQ(runs.elements().range(1), (Range{24, 47}));
  EXPECT_EQ(runs.rows(0, 0), (Range{0, 4}));
  EXPECT_TRUE(runs.rows(1, 0).empty());
  EXPECT_TRUE(runs.rows(0, 1).empty());
  EXPECT_EQ(runs.rows(1, 1), (Range{0, 3}));
  EXPECT_EQ(runs.rows(2, 1), (Range{0, 2}));
}

TEST(RowRuns, ALargeRowLeavesARankWithoutRows) {
  const RowRuns runs = RowRuns::even({{1, 100}, {2, 1}}, 3);
  EXPECT_EQ(runs.rows(0, 0), (Range{}));  // 34 is nearer to 0 than to 100
  EXPECT_EQ(runs.rows(0, 1), (Range{0, 1}));
  EXPECT_EQ(runs.rows(1, 2), (Range{0, 2}));
}

TEST(RowRuns, AreEmptyWithoutElements) {
  for (const Tensors& tensors : {Tensors{}, Tensors{{0, 5}}, Tensors{{3, 0}, {0, 0}}}) {
    const RowRuns runs = RowRuns::even(tensors, 2);
    EXPECT_EQ(runs.elements().size(), 0);
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(runs.rows(i, 1).empty());
  }
  EXPECT_THROW(RowRuns::even({}, 0), c10::ValueError);
}

/// Returns the begins of all rows in elements, and the end of the last one.
std::vector<int64_t> boundaries(const Tensors& tensors) {
  std::vector<int64_t> all = {0};
  for (const auto& [rows, row_elements] : tensors)
    for (int64_t row = 0; row < rows; ++row) all.push_back(all.back() + row_elements);
  return all;
}

void expect_nearest_cuts(const Tensors& tensors, int ranks) {
  const RowRuns runs = RowRuns::even(tensors, ranks);
  const std::vector<int64_t> all = boundaries(tensors);
  ASSERT_TRUE(runs.elements().is_partition());
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    const int64_t cut = runs.elements().range(rank).end;
    const int64_t target = even_range(all.back(), ranks, rank).end;
    int64_t nearest = all.back();
    for (const int64_t boundary : all) nearest = std::min(nearest, std::abs(boundary - target));
    EXPECT_EQ(std::abs(cut - target), nearest) << "rank " << rank << " of " << ranks;
  }
}

void expect_rows_of_the_elements(const Tensors& tensors, int ranks) {
  const RowRuns runs = RowRuns::even(tensors, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    int64_t elements = 0;
    for (size_t i = 0; i < tensors.size(); ++i)
      elements += runs.rows(i, rank).size() * tensors[i].row_elements;
    EXPECT_EQ(elements, runs.elements().range(rank).size());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].row_elements == 0) continue;
    int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Range rows = runs.rows(i, rank);
      if (rows.empty()) continue;
      EXPECT_EQ(rows.begin, next);
      next = rows.end;
    }
    EXPECT_EQ(next, tensors[i].rows);
  }
}

TEST(RowRuns, DealEveryRowOnceAndEvenly) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    Tensors tensors(random() % 6);
    for (auto& [rows, row_elements] : tensors)
      rows = int64_t(random() % 9), row_elements = int64_t(random() % 12);
    for (int ranks = 1; ranks <= 9; ++ranks) {
      expect_nearest_cuts(tensors, ranks);
      expect_rows_of_the_elements(tensors, ranks);
    }
  }
}

}  // namespace
}  // namespace shardwise::base::row_runs_test
