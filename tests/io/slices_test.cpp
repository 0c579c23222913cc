#include "shardwise/io/slices.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::io::slices_test {
namespace {

using base::ShardRule, base::Split;
using test::contains, test::error_text;

using Runs = std::vector<ByteRun>;

Runs runs(const std::vector<int64_t>& shape, int64_t itemsize, int64_t dim, ShardRule::Piece piece,
          int64_t local_size) {
  Runs all;
  for_each_run(shape, itemsize, dim, piece, local_size, [&](const ByteRun& run) { all.push_back(run); });
  return all;
}

TEST(ForEachRun, MergesRowsIntoOneRun) {
  EXPECT_EQ(runs({6, 5}, 4, 0, {2, 1, 3}, 4), (Runs{{2 * 20, 1 * 20, 3 * 20}}));
}

TEST(ForEachRun, VisitsOneRunPerRowForColumns) {
  EXPECT_EQ(runs({3, 8}, 2, 1, {4, 1, 2}, 5), (Runs{{8, 2, 4}, {16 + 8, 10 + 2, 4}, {32 + 8, 20 + 2, 4}}));
}

TEST(ForEachRun, VisitsTheFullTensorAsOneRun) {
  for (int64_t dim = 0; dim < 3; ++dim) {
    const std::vector<int64_t> shape = {3, 4, 5};
    EXPECT_EQ(runs(shape, 2, dim, {0, 0, shape[dim]}, shape[dim]), (Runs{{0, 0, 120}}));
  }
}

TEST(ForEachRun, VisitsNothingForEmptyPieces) {
  EXPECT_TRUE(runs({6, 5}, 4, 0, {6, 0, 0}, 0).empty());
  EXPECT_TRUE(runs({6, 0}, 4, 0, {0, 0, 3}, 3).empty());
  EXPECT_TRUE(runs({0, 6}, 4, 1, {0, 0, 3}, 3).empty());
}

TEST(ForEachRun, RejectsPiecesOutOfRange) {
  for (const auto& [piece, local_size] : std::vector<std::pair<ShardRule::Piece, int64_t>>{
           {{4, 0, 3}, 3}, {{-1, 0, 3}, 3}, {{0, 1, 3}, 3}, {{0, 0, -1}, 3}, {{0, -1, 2}, 3}}) {
    EXPECT_PRED2(contains, error_text([&] { runs({6}, 1, 0, piece, local_size); }), "must be within");
  }
  EXPECT_PRED2(contains, error_text([] { runs({6}, 1, 1, {0, 0, 1}, 1); }), "dim must be below");
  EXPECT_PRED2(contains, error_text([] { runs({}, 1, 0, {0, 0, 1}, 1); }), "dim must be below");
}

/// Returns the values 1, 2, ... of a tensor in row-major order.
std::vector<int32_t> numbered(int64_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

/// Returns a shard of `unsharded` from the definition: index j along `dim` of the shard is index at[j] of
/// `unsharded`.
std::vector<int32_t> picked(const std::vector<int32_t>& unsharded, const std::vector<int64_t>& shape,
                            int64_t dim, const std::vector<int64_t>& at) {
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < dim; ++d) outer *= shape[d];
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  std::vector<int32_t> shard;
  for (int64_t o = 0; o < outer; ++o) {
    for (const int64_t index : at) {
      for (int64_t i = 0; i < inner; ++i) shard.push_back(unsharded[(o * shape[dim] + index) * inner + i]);
    }
  }
  return shard;
}

/// A rule for fused q|k|v along `dim`: 6 query heads of 2, and 3 KV heads of 2 for k and v; KV heads may be
/// replicated.
ShardRule fused(int64_t dim, int ranks) {
  const Split query = Split::even("heads", 6, ranks);
  const Split kv = Split::kv_heads_of(query, 3);
  return {dim, {{query, 2}, {kv, 2}, {kv, 2}}};
}

std::vector<int64_t> indices(const ShardRule::Piece& piece) {
  std::vector<int64_t> at(piece.size);
  std::iota(at.begin(), at.end(), piece.global_begin);
  return at;
}

std::vector<int64_t> indices(const ShardRule& rule, int rank) {
  std::vector<int64_t> at;
  for (const ShardRule::Piece& piece : rule.pieces(rank)) {
    const std::vector<int64_t> of_piece = indices(piece);
    at.insert(at.end(), of_piece.begin(), of_piece.end());
  }
  return at;
}

/// Writes the pieces that a rank owns, as saving a checkpoint does.
void write_owned(const SafetensorsWriter& file, const ShardRule& rule, int rank, const void* src) {
  for (const ShardRule::Piece& piece : rule.owned_pieces(rank))
    write_piece(file, file.layout().find("w"), rule.dim, piece, rule.local_size(rank), src);
}

/// Reads the elements [piece.global_begin, + piece.size) along `dim` as one block.
std::vector<int32_t> read_piece(const SafetensorsFile& file, int64_t dim, const ShardRule::Piece& piece) {
  const TensorInfo& tensor = file.find("w");
  const base::Range slice{piece.global_begin, piece.global_begin + piece.size};
  const RowBlock block = block_of(tensor, dim, slice, {0, dim == 0 ? piece.size : tensor.shape[0]});
  std::vector<int32_t> elements(block.bytes() / sizeof(int32_t), -1);
  read_block(file, block, elements.data());
  return elements;
}

class Shards : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int64_t dim() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  std::vector<int64_t> shape() const {
    std::vector<int64_t> shape = {3, 5, 4};
    shape[dim()] = 24;  // (6 + 3 + 3) heads of 2
    return shape;
  }
};

TEST_P(Shards, RoundTripWhenAllRanksWriteConcurrently) {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "f";
  int64_t count = 1;
  for (const int64_t size : shape()) count *= size;
  const std::vector<int32_t> unsharded = numbered(count);
  const ShardRule rule = fused(dim(), ranks());
  const FileLayout layout = plan_file({{"before", Dtype::U8, {3}}, {"w", Dtype::I32, shape()}});
  SafetensorsWriter::create(path, layout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::vector<int32_t> shard = picked(unsharded, shape(), dim(), indices(rule, rank));
      const SafetensorsWriter writer = SafetensorsWriter::open(path, layout);
      write_owned(writer, rule, rank, shard.data());
      writer.sync();
    });
  }
  for (std::thread& thread : threads) thread.join();

  const SafetensorsFile file(path);
  std::vector<int32_t> written(count);
  file.read_tensor(file.find("w"), written.data());
  EXPECT_EQ(written, unsharded);
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const ShardRule::Piece& piece : rule.pieces(rank))
      EXPECT_EQ(read_piece(file, dim(), piece), picked(unsharded, shape(), dim(), indices(piece)))
          << "rank " << rank;
  }
}

/// Reads and writes a slice of a 4 x 6 tensor in blocks of at most the given bytes.
class Blocks : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int64_t dim() const { return std::get<0>(GetParam()); }
  int64_t max_bytes() const { return std::get<1>(GetParam()); }
  const std::vector<int64_t> shape_ = {4, 6};
  const base::Range slice_ = {1, 4};
  const std::vector<int32_t> values_ = numbered(24);
  std::vector<int32_t> slice() const { return picked(values_, shape_, dim(), {1, 2, 3}); }
};

TEST_P(Blocks, ReadTheSlice) {
  const test::TemporaryDirectory directory;
  const FileLayout layout = plan_file({{"before", Dtype::U8, {3}}, {"w", Dtype::I32, shape_}});
  const auto out = SafetensorsWriter::create(directory / "f", layout);
  out.write_tensor(layout.find("w"), values_.data());
  const SafetensorsFile file(directory / "f");
  const int64_t header = file.bytes_read();
  std::vector<int32_t> read;
  for (const base::Range& rows : block_rows(file.find("w"), dim(), slice_, max_bytes())) {
    const RowBlock block = block_of(file.find("w"), dim(), slice_, rows);
    const int64_t count = rows.size() * (dim() == 0 ? 6 : 3);
    EXPECT_TRUE(count * 4 <= max_bytes() || rows.size() == 1) << count;
    read.resize(read.size() + count);
    read_block(file, block, read.data() + read.size() - count);
  }
  EXPECT_EQ(read, slice());
  EXPECT_EQ(file.bytes_read(), header + static_cast<int64_t>(4 * slice().size()));
}

TEST_P(Blocks, WriteTheSlice) {
  const test::TemporaryDirectory directory;
  const FileLayout layout = plan_file({{"before", Dtype::U8, {3}}, {"w", Dtype::I32, shape_}});
  const auto out = SafetensorsWriter::create(directory / "f", layout);
  const std::vector<int32_t> zeros(24), values = slice();
  out.write_tensor(layout.find("w"), zeros.data());
  const int32_t* next = values.data();
  for (const base::Range& rows : block_rows(layout.find("w"), dim(), slice_, max_bytes())) {
    write_block(out, block_of(layout.find("w"), dim(), slice_, rows), next);
    next += rows.size() * (dim() == 0 ? 6 : 3);
  }
  const SafetensorsFile file(directory / "f");
  std::vector<int32_t> written(24);
  file.read_tensor(file.find("w"), written.data());
  EXPECT_EQ(picked(written, shape_, dim(), {1, 2, 3}), values);
  EXPECT_EQ(std::accumulate(written.begin(), written.end(), 0),
            std::accumulate(values.begin(), values.end(), 0));
}

INSTANTIATE_TEST_SUITE_P(DimsAndBytes, Blocks,
                         testing::Combine(testing::Values(0, 1), testing::Values(1, 30, 64, 1000)));

TEST(BlockOf, RejectsRowsOutOfRange) {
  const TensorInfo tensor{"w", Dtype::I32, {4, 6}, 100, 196};
  EXPECT_PRED2(contains, error_text([&] { block_of(tensor, 1, {4, 7}, {0, 1}); }), "must be within");
  EXPECT_PRED2(contains, error_text([&] { block_of(tensor, 1, {0, 3}, {3, 5}); }), "must be within");
  EXPECT_PRED2(contains, error_text([&] { block_of(tensor, 0, {2, 4}, {1, 3}); }), "must be within");
}

INSTANTIATE_TEST_SUITE_P(DimsAndRanks, Shards,
                         testing::Combine(testing::Values(0, 1, 2), testing::Values(1, 2, 3, 4, 7)));

}  // namespace
}  // namespace shardwise::io::slices_test
