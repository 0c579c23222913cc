// Pieces of any size: scatter, gather and all-to-all, checked against expected values, and sizes that differ
// between sender and receiver.
#include <ATen/ops/cat.h>

#include "tests/comm/backends.h"
#include "tests/comm/values.h"

namespace shardwise::comm::shm::variable_size_test {
namespace {

using namespace shardwise::testing;

/// Returns the size of the piece from i to j in units: 0 to 5, and 0 for the last of 3 or more ranks.
int64_t units(int i, int j, int ranks) {
  if (ranks > 2 && (i == ranks - 1 || j == ranks - 1)) return 0;
  return (3 * i + 5 * j + 1) % 6;
}

struct Case {
  int ranks;
  int64_t unit;  // elements
  at::ScalarType dtype;
  Memory memory;

  /// Returns a tensor with one row of `unit` elements per unit.
  at::Tensor piece(int i, int j) const { return value({units(i, j, ranks), unit}, 10 * i + j, dtype); }
  std::vector<int64_t> rows_from(int i) const {
    std::vector<int64_t> rows;
    for (int j = 0; j < ranks; ++j) rows.push_back(units(i, j, ranks));
    return rows;
  }
  std::vector<int64_t> rows_to(int j) const {
    std::vector<int64_t> rows;
    for (int i = 0; i < ranks; ++i) rows.push_back(units(i, j, ranks));
    return rows;
  }
  std::string name() const {
    return std::to_string(ranks) + " ranks, unit " + std::to_string(unit) + ", " +
           std::string(c10::toString(dtype)) + ", memory " + std::to_string(int(memory));
  }
};

class VariableSizes : public ::testing::TestWithParam<int> {
 protected:
  /// Runs `body` on one group with messages that fit a slot and messages that need the heap.
  static void on_all_cases(const std::function<void(Backend&, int rank, const Case&)>& body) {
    on_backends(GetParam(), [&](Backend& backend, int rank) {
      for (const at::ScalarType dtype : kDtypes) {
        for (const Memory memory : kMemories) {
          for (const int64_t unit : {1, 1111}) body(backend, rank, {GetParam(), unit, dtype, memory});
        }
      }
    });
  }
};

TEST_P(VariableSizes, ScatterSendsEachRankItsPiece) {
  on_all_cases([](Backend& backend, int rank, const Case& c) {
    for (int root = 0; root < c.ranks; ++root) {
      std::vector<Tensors> pieces;
      if (rank == root) pieces.emplace_back();
      for (int peer = 0; rank == root && peer < c.ranks; ++peer)
        pieces[0].push_back(placed(backend, c.piece(root, peer), c.memory));
      Tensors shard = {placed_like(backend, c.piece(root, rank), c.memory)};
      backend.scatter(shard, pieces, {.rootRank = root})->wait();
      EXPECT_TRUE(equals(shard[0], c.piece(root, rank))) << c.name() << ", root " << root;
    }
  });
}

TEST_P(VariableSizes, GatherCollectsEachRanksPieceAtTheRoot) {
  on_all_cases([](Backend& backend, int rank, const Case& c) {
    for (int root = 0; root < c.ranks; ++root) {
      std::vector<Tensors> gathered;
      if (rank == root) gathered.emplace_back();
      for (int peer = 0; rank == root && peer < c.ranks; ++peer)
        gathered[0].push_back(placed_like(backend, c.piece(peer, root), c.memory));
      Tensors shard = {placed(backend, c.piece(rank, root), c.memory)};
      backend.gather(gathered, shard, {.rootRank = root})->wait();
      shard[0].fill_(99);  // the caller may overwrite it now
      for (int peer = 0; rank == root && peer < c.ranks; ++peer)
        EXPECT_TRUE(equals(gathered[0][size_t(peer)], c.piece(peer, root))) << c.name() << ", root " << root;
    }
  });
}

TEST_P(VariableSizes, AllToAllExchangesAllPairs) {
  on_all_cases([](Backend& backend, int rank, const Case& c) {
    Tensors inputs, outputs;
    for (int peer = 0; peer < c.ranks; ++peer) {
      inputs.push_back(placed(backend, c.piece(rank, peer), c.memory));
      outputs.push_back(placed_like(backend, c.piece(peer, rank), c.memory));
    }
    backend.alltoall(outputs, inputs, {})->wait();
    for (at::Tensor& input : inputs) input.fill_(99);
    for (int peer = 0; peer < c.ranks; ++peer)
      EXPECT_TRUE(equals(outputs[size_t(peer)], c.piece(peer, rank))) << c.name();
  });
}

TEST_P(VariableSizes, AllToAllSplitsATensorAlongDim0) {
  on_all_cases([](Backend& backend, int rank, const Case& c) {
    Tensors sent, expected;
    for (int peer = 0; peer < c.ranks; ++peer) {
      sent.push_back(c.piece(rank, peer));
      expected.push_back(c.piece(peer, rank));
    }
    at::Tensor input = placed(backend, at::cat(sent), c.memory);
    at::Tensor output = placed_like(backend, at::cat(expected), c.memory);
    std::vector<int64_t> output_rows = c.rows_to(rank), input_rows = c.rows_from(rank);
    backend.alltoall_base(output, input, output_rows, input_rows, {})->wait();
    input.fill_(99);  // a peer that still reads it would get a wrong result
    EXPECT_TRUE(equals(output, at::cat(expected))) << c.name();
  });
}

// Empty splits mean even ones, also if only one side passes them.
TEST_P(VariableSizes, EmptySplitsAreEven) {
  on_backends(GetParam(), [](Backend& backend, int rank) {
    const int ranks = GetParam();
    at::Tensor input = value({2 * ranks, 3}, rank, at::kFloat), output = at::empty({2 * ranks, 3});
    std::vector<int64_t> none, twos(size_t(ranks), 2);
    const auto check = [&] {
      for (int peer = 0; peer < ranks; ++peer) {
        EXPECT_TRUE(equals(output.narrow(0, 2 * peer, 2),
                           value({2 * ranks, 3}, peer, at::kFloat).narrow(0, 2 * rank, 2)));
      }
      output.fill_(77);
    };
    backend.alltoall_base(output, input, none, none, {})->wait();
    check();
    if (rank == 0) {
      backend.alltoall_base(output, input, twos, none, {})->wait();
    } else {
      backend.alltoall_base(output, input, none, twos, {})->wait();
    }
    check();
  });
}

// The ranks compare sizes of pieces, not shapes.
TEST_P(VariableSizes, ShapesMayDiffer) {
  on_backends(GetParam(), [](Backend& backend, int rank) {
    const int ranks = GetParam();
    at::Tensor input = value({3 * ranks, 4}, rank, at::kInt), output = at::empty({2 * ranks, 6}, at::kInt);
    std::vector<int64_t> none;
    backend.alltoall_base(output, input, none, none, {})->wait();
    for (int peer = 0; peer < ranks; ++peer) {
      const at::Tensor sent = value({3 * ranks, 4}, peer, at::kInt).narrow(0, 3 * rank, 3);
      EXPECT_TRUE(equals(output.narrow(0, 2 * peer, 2), sent.reshape({2, 6})));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, VariableSizes, ::testing::Values(1, 2, 3, 4));

/// A call with pieces of 4 elements, except one for which rank 2 passes another size.
using MismatchedCall = std::function<void(Backend&, int rank)>;

void scatter_three_to_rank_2(Backend& backend, int rank) {
  std::vector<Tensors> pieces;
  if (rank == 1) pieces = {{at::full({4}, 1.f), at::full({4}, 1.f), at::full({3}, 1.f)}};
  Tensors shard = {at::empty({4})};
  backend.scatter(shard, pieces, {.rootRank = 1})->wait();
}
void gather_three_from_rank_2(Backend& backend, int rank) {
  std::vector<Tensors> gathered;
  if (rank == 1) gathered = {{at::empty({4}), at::empty({4}), at::empty({4})}};
  Tensors shard = {at::full({rank == 2 ? 3 : 4}, 1.f)};
  backend.gather(gathered, shard, {.rootRank = 1})->wait();
}
void list_of_three_from_rank_2_to_1(Backend& backend, int rank) {
  Tensors inputs, outputs;
  for (int peer = 0; peer < 3; ++peer) {
    inputs.push_back(at::full({rank == 2 && peer == 1 ? 3 : 4}, 1.f));
    outputs.push_back(at::empty({4}));
  }
  backend.alltoall(outputs, inputs, {})->wait();
}
void rows_of_three_from_rank_2_to_1(Backend& backend, int rank) {
  std::vector<int64_t> none, less = {4, 3, 4};
  at::Tensor input = at::full({rank == 2 ? 11 : 12}, 1.f), output = at::empty({12});
  backend.alltoall_base(output, input, none, rank == 2 ? less : none, {})->wait();
}
void rows_far_beyond_what_rank_1_sends(Backend& backend, int rank) {
  std::vector<int64_t> none, rows = {4, 1'000'000, 4};
  at::Tensor input = at::full({12}, 1.f), output = at::empty({rank == 2 ? 1'000'008 : 12});
  backend.alltoall_base(output, input, rank == 2 ? rows : none, none, {})->wait();
}

TEST(MismatchedSizes, FailOnAllRanksNamingBothSides) {
  const std::pair<MismatchedCall, std::string> cases[] = {
      {scatter_three_to_rank_2, "rank 1 sends float32 [3], rank 2 expects float32 [4]"},
      {gather_three_from_rank_2, "rank 2 sends float32 [3], rank 1 expects float32 [4]"},
      {list_of_three_from_rank_2_to_1, "rank 2 sends float32 [3], rank 1 expects float32 [4]"},
      {rows_of_three_from_rank_2_to_1, "rank 2 sends float32 [3], rank 1 expects float32 [4]"},
      {rows_far_beyond_what_rank_1_sends, "rank 1 sends float32 [4], rank 2 expects float32 [1000000]"}};
  for (const auto& [call, text] : cases) {
    const auto errors = errors_of(3, [&](Backend& backend, int rank) {
      call(backend, rank);
      backend.barrier({})->wait();  // ranks without part in the exchange get the error here
    });
    for (const std::string& error : errors) EXPECT_TRUE(says(error, text)) << error;
  }
}

TEST(MismatchedSizes, WithEqualBytesButOtherDtypesFailOnAllRanks) {
  const auto errors = errors_of(3, [](Backend& backend, int rank) {
    const at::ScalarType dtype = rank == 1 ? at::kInt : at::kFloat;  // of the same size
    at::Tensor input = at::full({3}, 1, dtype), output = at::empty({3}, dtype);
    std::vector<int64_t> none;
    backend.alltoall_base(output, input, none, none, {})->wait();
    backend.barrier({})->wait();
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(says(error, "runs all_to_all float32")) << error;
    EXPECT_TRUE(says(error, "rank 1 runs all_to_all int32")) << error;
  }
}

/// Expects that rank 1 of three, whose arguments alone are wrong, throws `rule`, and that the other ranks,
/// which already wait for it, quote it.
void expect_errors_of_rank_1(const std::string& rule, const BackendBody& call) {
  on_backends(3, [&](Backend& backend, int rank) {
    try {
      call(backend, rank);
      ADD_FAILURE() << "no error on rank " << rank << ": " << rule;
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(rank, 1);
      EXPECT_TRUE(says(base::one_line(error), rule)) << base::one_line(error);
    } catch (const base::CommError& error) {
      EXPECT_NE(rank, 1);
      EXPECT_TRUE(says(base::one_line(error), "rank 1 aborted: " + rule)) << base::one_line(error);
    }
  });
}

TEST(InvalidSplits, FailOnAllRanks) {
  const std::vector<int64_t> wrong[] = {{3, 2, 2}, {-1, 4, 3}, {6}};
  for (const std::vector<int64_t>& splits : wrong) {
    const auto call = [&](Backend& backend, int rank) {
      at::Tensor input = at::full({6}, 1.f), output = at::empty({6});
      std::vector<int64_t> none, input_splits = rank == 1 ? splits : none;
      backend.alltoall_base(output, input, none, input_splits, {})->wait();
    };
    expect_errors_of_rank_1("alltoall_base: splits must divide dim 0 among 3 ranks", call);
  }
}

TEST(InvalidSizes, FailOnAllRanks) {
  const auto part = [](int rank) { return at::full({rank == 1 ? 1 : 2}, 1.f); };
  const auto full = [] { return at::full({6}, 1.f); };
  const std::string ratio = ": the larger tensor must hold one piece per rank";
  expect_errors_of_rank_1("allgather_into_tensor" + ratio, [&](Backend& backend, int rank) {
    at::Tensor out = full(), x = part(rank);
    backend._allgather_base(out, x, {})->wait();
  });
  expect_errors_of_rank_1("allgather_into_tensor_coalesced" + ratio, [&](Backend& backend, int rank) {
    Tensors out = {full()}, x = {part(rank)};
    backend.allgather_into_tensor_coalesced(out, x, {})->wait();
  });
  expect_errors_of_rank_1("reduce_scatter_tensor" + ratio, [&](Backend& backend, int rank) {
    at::Tensor out = part(rank), x = full();
    backend._reduce_scatter_base(out, x, {})->wait();
  });
  expect_errors_of_rank_1("reduce_scatter_tensor_coalesced" + ratio, [&](Backend& backend, int rank) {
    Tensors out = {part(rank)}, x = {full()};
    backend.reduce_scatter_tensor_coalesced(out, x, {})->wait();
  });
  const auto few_outputs = [&](Backend& backend, int rank) {
    Tensors x = {full()}, list = {full()};
    std::vector<Tensors> outputs(3, rank == 1 ? Tensors() : list);
    backend.allgather_coalesced(outputs, x, {})->wait();
  };
  const auto another_dtype = [&](Backend& backend, int rank) {
    Tensors x = {at::full({2}, 1, rank == 1 ? at::kDouble : at::kFloat)};
    std::vector<Tensors> outputs = {{at::full({2}, 0.f), at::full({2}, 0.f), at::full({2}, 0.f)}};
    backend.allgather(outputs, x, {})->wait();
  };
  expect_errors_of_rank_1(
      "allgather: accepts one CPU tensor per rank, all of one dtype; got 3 for 3 ranks, one of Float with "
      "Double",
      another_dtype);
  expect_errors_of_rank_1("allgather_coalesced: every list must have one output per input", few_outputs);
}

}  // namespace
}  // namespace shardwise::comm::shm::variable_size_test
