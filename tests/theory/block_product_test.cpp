// Block matrices multiply like matrices of scalars, and transposing a block matrix also transposes its
// blocks.
#include <gtest/gtest.h>

#include "tests/theory/matrix.h"

namespace shardwise::testing::theory::block_product_test {
namespace {

using base::Range;

Matrix block(const Matrix& a, Range rows, Range columns) {
  return columns_of(rows_of(a, rows), columns);
}

// X [5, 7] and A [7, 6], each partitioned into 2 by 2 blocks; X's columns are partitioned like A's rows.
const Matrix kX = sample(5, 7, 1), kA = sample(7, 6, 2);
const Range kTop{0, 2}, kBottom{2, 5};    // X's rows
const Range kFirst{0, 4}, kSecond{4, 7};  // the index that is summed over
const Range kLeft{0, 1}, kRight{1, 6};    // A's columns

// (XA)ᵢₖ = Σⱼ Xᵢⱼ Aⱼₖ, with blocks in place of scalars.
TEST(BlockProduct, MultipliesLikeAProductOfScalars) {
  for (const Range rows : {kTop, kBottom}) {
    for (const Range columns : {kLeft, kRight}) {
      const Matrix sum = block(kX, rows, kFirst) * block(kA, kFirst, columns) +
                         block(kX, rows, kSecond) * block(kA, kSecond, columns);
      EXPECT_EQ(sum, block(kX * kA, rows, columns));
    }
  }
}

// The block at (i, j) of Aᵀ is the transpose of A's block at (j, i).
TEST(BlockProduct, TransposeTransposesEachBlock) {
  for (const Range rows : {kFirst, kSecond}) {
    for (const Range columns : {kLeft, kRight}) {
      EXPECT_EQ(block(transposed(kA), columns, rows), transposed(block(kA, rows, columns)));
    }
  }
}

TEST(BlockProduct, TransposeOfAProductIsTheReversedProductOfTransposes) {
  EXPECT_EQ(transposed(kX * kA), transposed(kA) * transposed(kX));
  for (const Range rows : {kTop, kBottom}) {
    for (const Range columns : {kLeft, kRight}) {
      const Matrix sum = transposed(block(kA, kFirst, columns)) * transposed(block(kX, rows, kFirst)) +
                         transposed(block(kA, kSecond, columns)) * transposed(block(kX, rows, kSecond));
      EXPECT_EQ(sum, block(transposed(kX * kA), columns, rows));
    }
  }
}

// If A is sharded by columns, Aᵀ is sharded by rows.
TEST(BlockProduct, ColumnsAreRowsOfTheTranspose) {
  EXPECT_EQ(rows_of(transposed(kA), kRight), transposed(columns_of(kA, kRight)));
  EXPECT_EQ(columns_of(transposed(kA), kSecond), transposed(rows_of(kA, kSecond)));
}

}  // namespace
}  // namespace shardwise::testing::theory::block_product_test
