// Lookup in one shard of an embedding table on a GPU, forward and backward. Launchers queue kernels in a
// stream: they allocate nothing and wait for nothing.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Shapes: `y` [count, h], `ids` [count], `table` [v, h].
template <class T>
struct Embedding {
  T* y;
  const int64_t* ids;
  const T* table;
  int64_t count;
  int64_t begin;  // id of the table's first row
  int v, h;
};
/// Computes y = table[ids − begin], zero for ids outside [begin, begin + v). T: float, __nv_bfloat16 or
/// __half.
template <class T>
void embedding(const Embedding<T>& e, cudaStream_t stream);

/// Shapes: `table_grad` [v, h], `dy` [count, h], `ids` [count], `order`, `ends` [count].
template <class T>
struct EmbeddingBackward {
  float* table_grad;  // is added to
  int *order, *ends;  // scratch
  const T* dy;
  const int64_t* ids;
  int count;      // positions
  int64_t begin;  // id of the table's first row
  int v, h;
};
/// Adds each row of dy to its id's row of table_grad, in the order of positions: to the bits of one addition
/// after the other. T: float or __nv_bfloat16.
///
/// Cost: a block per 1,024 rows of the table reads the ids twice and sorts the positions of its rows; then
/// each row that has positions is read and written once. An id's additions of a column follow each other.
template <class T>
void embedding_backward(const EmbeddingBackward<T>& e, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda
