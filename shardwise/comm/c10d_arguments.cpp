#include "shardwise/comm/c10d_arguments.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "shardwise/comm/argument_checks.h"

namespace shardwise::comm {

using Tensors = CollectiveBackend::Tensors;

void check_dense(const at::Tensor& x, const char* name) {
  TORCH_CHECK_VALUE(x.is_cpu() && x.layout() == at::kStrided, name,
                    ": accepts dense tensors on the CPU; got a ", x.layout(), " tensor on ", x.device(),
                    " [SW0469]");
  check_holds_values(x, name);
}

void check_dense(const Tensors& tensors, const char* name) {
  for (const at::Tensor& tensor : tensors) check_dense(tensor, name);
}

at::Tensor& single(Tensors& tensors, const char* name) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, ": accepts one tensor; got ", tensors.size(),
                    "; call it once per tensor [SW0470]");
  check_dense(tensors[0], name);
  return tensors[0];
}

void check_pieces(const Tensors& pieces, const at::Tensor& reference, int size, const char* name) {
  check_dense(pieces, name);
  const at::ScalarType dtype = reference.scalar_type();
  const auto other =
      std::ranges::find_if(pieces, [&](const at::Tensor& x) { return x.scalar_type() != dtype; });
  const bool is_of_one_dtype = other == pieces.end();
  TORCH_CHECK_VALUE(
      int(pieces.size()) == size && is_of_one_dtype, name,
      ": accepts one CPU tensor per rank, all of one dtype; got ", pieces.size(), " for ", size, " ranks",
      is_of_one_dtype ? "" : c10::str(", one of ", other->scalar_type(), " with ", dtype), " [SW0471]");
}

void check_ratio(const at::Tensor& large, const at::Tensor& small, int size, const char* name) {
  check_dense({large, small}, name);
  TORCH_CHECK_VALUE(large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * size, name,
                    ": the larger tensor must hold one piece per rank, of its dtype; got ", large.numel(),
                    " ", large.scalar_type(), " and ", small.numel(), " ", small.scalar_type(),
                    " elements for ", size, " ranks [SW0472]");
}

void check_base(const at::Tensor& full, const at::Tensor& shard, int size, const char* name) {
  check_ratio(full, shard, size, name);
  TORCH_CHECK_VALUE(full.is_contiguous(), name, ": output must be contiguous; got strides ", full.strides(),
                    " [SW0473]");
}

void check_own(const at::Tensor& input, const at::Tensor& output, const char* name) {
  TORCH_CHECK_VALUE(input.sizes() == output.sizes(), name,
                    ": this rank's input and its own part of the output must have the same shape; got ",
                    input.sizes(), " and ", output.sizes(), " [SW0474]");
}

void check_gathered(const Tensors& pieces, const at::Tensor& input, int rank, int size, const char* name) {
  check_dense(input, name);
  check_pieces(pieces, input, size, name);
  check_own(input, pieces[size_t(rank)], name);
}

std::vector<Tensors> transposed(const std::vector<Tensors>& lists, size_t count, const char* name) {
  std::vector<Tensors> result(count);
  for (const Tensors& list : lists) {
    TORCH_CHECK_VALUE(list.size() == count, name, ": every list must have one output per input; got ",
                      list.size(), " for ", count, " [SW0475]");
    for (size_t i = 0; i < count; ++i) result[i].push_back(list[i]);
  }
  return result;
}

Tensors joined(const std::vector<Tensors>& lists) {
  Tensors result;
  for (const Tensors& list : lists) result.insert(result.end(), list.begin(), list.end());
  return result;
}

void check_pairs(const Tensors& outputs, const Tensors& inputs, const char* name) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), name,
                    ": the number of outputs must be that of inputs; got ", outputs.size(), " and ",
                    inputs.size(), " [SW0476]");
}

void check_lists(size_t lists, bool is_root, const char* name) {
  TORCH_CHECK_VALUE(lists == (is_root ? 1u : 0u), name,
                    ": accepts one list of tensors at the root and none elsewhere; got ", lists, " [SW0477]");
}

void check_root(int64_t root, int64_t root_tensor, int size, const char* name) {
  check_rank(root, size, name);
  TORCH_CHECK_VALUE(root_tensor == 0, name, ": the root tensor must be 0, the only one; got ", root_tensor,
                    " [SW0479]");
}

std::vector<int64_t> row_counts(const at::Tensor& x, const std::vector<int64_t>& splits, int size) {
  const int64_t rows = x.dim() == 0 ? -1 : x.size(0);
  const bool covers_all = splits.empty()
                              ? rows >= 0 && rows % size == 0
                              : int(splits.size()) == size && *std::ranges::min_element(splits) >= 0 &&
                                    std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows;
  TORCH_CHECK_VALUE(covers_all, "alltoall_base: splits must divide dim 0 among ", size, " ranks; got ",
                    at::IntArrayRef(splits), " for ", x.sizes(), " [SW0480]");
  return splits.empty() ? std::vector<int64_t>(size_t(size), rows / size) : splits;
}

void check_own_rows(const at::Tensor& input, int64_t input_rows, const at::Tensor& output,
                    int64_t output_rows) {
  const auto elements = [](const at::Tensor& x, int64_t rows) {
    return rows == 0 ? 0 : rows * (x.numel() / x.size(0));
  };
  TORCH_CHECK_VALUE(elements(input, input_rows) == elements(output, output_rows),
                    "alltoall_base: the rows that this rank sends to itself must fill its own part of the "
                    "output; got ",
                    input_rows, " rows of ", input.sizes(), " for ", output_rows, " rows of ", output.sizes(),
                    " [SW0561]");
}

bool has_timeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0 || timeout == c10d::kUnsetTimeout,
                    "timeout: a call's timeout must be above 0 ms; got ", timeout.count(),
                    "; omit it for the group's [SW0562]");
  return timeout.count() > 0;
}

}  // namespace shardwise::comm
