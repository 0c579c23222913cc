// The checks of a c10d call's arguments, before anything is sent. All throw c10::ValueError that names the
// call.
#pragma once
#include <chrono>

#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

/// Checks that `x` is dense, on the CPU, and no conjugated or negated view.
void check_dense(const at::Tensor& x, const char* name);
void check_dense(const CollectiveBackend::Tensors& tensors, const char* name);
/// Returns the only tensor of a list.
at::Tensor& single(CollectiveBackend::Tensors& tensors, const char* name);
/// Checks that there is one tensor per rank, of the dtype of `reference`.
void check_pieces(const CollectiveBackend::Tensors& pieces, const at::Tensor& reference, int size,
                  const char* name);
/// Checks that `large` has room for one `small` per rank.
void check_ratio(const at::Tensor& large, const at::Tensor& small, int size, const char* name);
/// Checks the output and the input of an all_gather into one tensor.
void check_base(const at::Tensor& full, const at::Tensor& shard, int size, const char* name);
/// Checks the part that this rank sends to itself; the ranks compare the other parts when the call has
/// started.
void check_own(const at::Tensor& input, const at::Tensor& output, const char* name);
/// Checks the outputs and the input of an all_gather into a list.
void check_gathered(const CollectiveBackend::Tensors& pieces, const at::Tensor& input, int rank, int size,
                    const char* name);
void check_pairs(const CollectiveBackend::Tensors& outputs, const CollectiveBackend::Tensors& inputs,
                 const char* name);
/// Checks that only the root has a list of pieces.
void check_lists(size_t lists, bool is_root, const char* name);
void check_root(int64_t root, int64_t root_tensor, int size, const char* name);

/// Converts lists by rank, of `count` tensors each, to lists by tensor.
std::vector<CollectiveBackend::Tensors> transposed(const std::vector<CollectiveBackend::Tensors>& lists,
                                                   size_t count, const char* name);
CollectiveBackend::Tensors joined(const std::vector<CollectiveBackend::Tensors>& lists);
/// Returns the number of rows of `x` per rank: `splits`, or even parts if it is empty.
std::vector<int64_t> row_counts(const at::Tensor& x, const std::vector<int64_t>& splits, int size);

/// Checks the rows that this rank sends to itself in an all-to-all of two tensors.
void check_own_rows(const at::Tensor& input, int64_t input_rows, const at::Tensor& output,
                    int64_t output_rows);

/// Returns true if a call's options have a timeout of their own.
bool has_timeout(std::chrono::milliseconds timeout);

}  // namespace shardwise::comm
