#include "shardwise/kernels/embedding_cuda.h"

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// Copies rows of words, of 16 bytes or of one element.
template <class Word>
__global__ void __launch_bounds__(kPackThreads)
    embedding_words(Word* y, const int64_t* ids, const Word* table, int64_t begin, int64_t v, int64_t words,
                    unsigned parts) {
  const auto [row, word] = pack_place(parts);
  if (word >= words) return;
  const int64_t id = ids[row] - begin;
  y[row * words + word] = id >= 0 && id < v ? table[id * words + word] : Word{};
}

// ---- Backward: positions sorted by id, then sums of equal ids

constexpr int kSortThreads = 256, kSortWarps = kSortThreads / 32;
/// Rows of the table whose positions a block sorts, by counting, and those of one thread.
constexpr int kSortedRows = 1024, kRowsOfThread = kSortedRows / kSortThreads;

struct Counts {
  unsigned next[kSortedRows + 1];  // counts, then the places in `order` of the rows' next positions
  unsigned start[kSortedRows + 1];
  unsigned of_warp[kSortWarps];
  unsigned before;  // of the block's rows
};

/// Rows of the table's ids from `first` on, of which the block sorts `rows`.
struct SortedRows {
  int64_t first, begin;
  int rows;

  /// Returns the id's row, or kSortedRows if it is not of the block.
  __device__ int row_of(int64_t id) const {
    return id >= first && id < first + rows ? static_cast<int>(id - first) : kSortedRows;
  }
};

/// Counts the positions of each of the block's rows, and those of the rows before them.
__device__ void count_positions(Counts& counts, const int64_t* ids, int count, const SortedRows& sorted) {
  for (int row = threadIdx.x; row <= kSortedRows; row += kSortThreads) counts.next[row] = 0;
  if (threadIdx.x == 0) counts.before = 0;
  __syncthreads();
  unsigned before = 0;
  for (int64_t position = threadIdx.x; position < count; position += kSortThreads) {
    const int64_t id = ids[position];
    before += id >= sorted.begin && id < sorted.first ? 1 : 0;
    const int row = sorted.row_of(id);
    if (row < kSortedRows) atomicAdd(&counts.next[row], 1u);
  }
  atomicAdd(&counts.before, before);
  __syncthreads();
}

/// Turns the counts into the places where the rows' positions start.
__device__ void sum_counts(Counts& counts) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * kRowsOfThread;
  unsigned own = 0;
  for (int i = 0; i < kRowsOfThread; ++i) own += counts.next[first + i];
  unsigned until = own;  // of the warp's threads up to this
  for (unsigned by = 1; by < 32; by *= 2) {
    const unsigned others = __shfl_up_sync(~0u, until, by);
    if (lane >= by) until += others;
  }
  if (lane == 31) counts.of_warp[warp] = until;
  __syncthreads();
  unsigned start = counts.before + until - own;
  for (unsigned i = 0; i < warp; ++i) start += counts.of_warp[i];
  for (int i = 0; i < kRowsOfThread; ++i) {
    const unsigned of_row = counts.next[first + i];
    counts.start[first + i] = counts.next[first + i] = start;
    start += of_row;
  }
  if (threadIdx.x == kSortThreads - 1) counts.start[kSortedRows] = start;
  __syncthreads();
}

/// Writes the positions of the block's rows into `order`, by row and then by position. `ends` of a row's
/// first one is where its positions end, and 0 of the others. Warps write one after the other: positions stay
/// in order.
__global__ void __launch_bounds__(kSortThreads)
    sort_positions(int* order, int* ends, const int64_t* ids, int count, int64_t begin, int v) {
  auto& counts = block_shared<Counts>();
  const int row_offset = blockIdx.x * kSortedRows;
  const SortedRows sorted = {begin + row_offset, begin,
                             v - row_offset < kSortedRows ? v - row_offset : kSortedRows};
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  count_positions(counts, ids, count, sorted);
  sum_counts(counts);
  int64_t ahead = static_cast<int>(threadIdx.x) < count ? ids[threadIdx.x] : begin - 1;
  for (int64_t tile = 0; tile < count; tile += kSortThreads) {
    const int64_t position = tile + threadIdx.x, later = position + kSortThreads;
    const int row = sorted.row_of(ahead);
    ahead = later < count ? ids[later] : begin - 1;
    const unsigned equal = __match_any_sync(~0u, row), lower = __popc(equal & ((1u << lane) - 1));
#pragma unroll 1
    for (unsigned turn = 0; turn < kSortWarps; ++turn) {
      if (turn == warp) {
        const unsigned place = counts.next[row] + lower;
        __syncwarp();
        if (lower == 0) counts.next[row] = place + __popc(equal);
        if (row < kSortedRows) {
          order[place] = static_cast<int>(position);
          ends[place] = place == counts.start[row] ? static_cast<int>(counts.start[row + 1]) : 0;
        }
      }
      __syncthreads();
    }
  }
  if (blockIdx.x + 1 < gridDim.x) return;
  for (int64_t place = counts.start[kSortedRows] + threadIdx.x; place < count; place += kSortThreads)
    ends[place] = 0;
}

/// A row of blocks per place in `order`: those of a row's first position add all of its positions.
template <class T, int N>
__global__ void __launch_bounds__(kPackThreads)
    add_sorted_rows(float* table_grad, const int* order, const int* ends, const T* dy, const int64_t* ids,
                    int64_t begin, int h, unsigned parts) {
  const auto [place, pack] = pack_place(parts);
  const int end = ends[place];
  if (pack >= h / N || end == 0) return;
  const int64_t row = ids[order[place]] - begin;
  float sums[N];
  load_floats(sums, table_grad + row * h, pack);
#pragma unroll 4
  for (int64_t i = place; i < end; ++i) {
    const Pack<T, N> values = as_packs<N>(dy)[int64_t{order[i]} * (h / N) + pack];
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += static_cast<float>(values.at[j]);
  }
  store_floats(table_grad + row * h, pack, sums);
}

}  // namespace

template <class T>
void embedding(const Embedding<T>& e, cudaStream_t stream) {
  if (e.count == 0 || e.h == 0) return;
  const auto copy = [&]<class Word>(Word) {
    const int64_t words = e.h * sizeof(T) / sizeof(Word);
    launch_packs(embedding_words<Word>, e.count, words, stream, reinterpret_cast<Word*>(e.y), e.ids,
                 reinterpret_cast<const Word*>(e.table), e.begin, int64_t{e.v}, words);
  };
  if (is_aligned(e.y) && is_aligned(e.table) && e.h * sizeof(T) % 16 == 0) return copy(uint4{});
  copy(std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>{});
}
template void embedding(const Embedding<float>&, cudaStream_t);
template void embedding(const Embedding<__nv_bfloat16>&, cudaStream_t);
template void embedding(const Embedding<__half>&, cudaStream_t);

template <class T>
void embedding_backward(const EmbeddingBackward<T>& e, cudaStream_t stream) {
  if (e.count == 0 || e.v == 0 || e.h == 0) return;
  launch(sort_positions, (e.v + kSortedRows - 1) / kSortedRows, kSortThreads, stream, e.order, e.ends, e.ids,
         e.count, e.begin, e.v);
  with_pack<T>(e.h, is_aligned(e.table_grad) && is_aligned(e.dy), [&](auto n) {
    launch_packs(add_sorted_rows<T, n>, e.count, e.h / n, stream, e.table_grad, e.order, e.ends, e.dy, e.ids,
                 e.begin, e.h);
  });
}
template void embedding_backward(const EmbeddingBackward<float>&, cudaStream_t);
template void embedding_backward(const EmbeddingBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
