#include "shardwise/kernels/random.h"

#include <algorithm>

#include "shardwise/base/philox.h"
#include "shardwise/kernels/random_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

// A distribution: standard numbers z, drawn in chunks, are mapped to shift + scale · z.
struct Distribution {
  void (*chunk)(double* z, uint64_t first_block, uint64_t key);
  double shift, scale;
};

// A range of elements that is contiguous both in the unsharded tensor and in the slice.
struct ElementRun {
  int64_t global_begin, local_begin, size;
};

using Pieces = std::vector<base::ShardRule::Piece>;

int64_t product(at::IntArrayRef sizes) {
  int64_t result = 1;
  for (const int64_t size : sizes) result *= size;
  return result;
}

int64_t size_of(const Pieces& pieces) {
  int64_t size = 0;
  for (const auto& piece : pieces) size += piece.size;
  return size;
}

std::vector<ElementRun> runs_of(at::IntArrayRef global_shape, int64_t dim, const Pieces& pieces) {
  if (pieces.empty()) return {{0, 0, product(global_shape)}};
  const int64_t outer = product(global_shape.slice(0, dim)), inner = product(global_shape.slice(dim + 1));
  const int64_t global = global_shape[dim], local = size_of(pieces);
  std::vector<ElementRun> runs;
  for (int64_t i = 0; i < outer; ++i) {
    for (const auto& piece : pieces) {
      runs.push_back({(i * global + piece.global_begin) * inner, (i * local + piece.local_begin) * inner,
                      piece.size * inner});
    }
  }
  return runs;
}

void check_pieces(const char* op, at::IntArrayRef shape, int64_t dim, const Pieces& pieces) {
  TORCH_CHECK_VALUE(dim >= 0 && dim < static_cast<int64_t>(shape.size()), op, ": dim must be one of ", shape,
                    "'s; got ", dim, " [SW0419]");
  for (const auto& [global_begin, local_begin, size] : pieces) {
    TORCH_CHECK_VALUE(global_begin >= 0 && size >= 0 && global_begin + size <= shape[dim] &&
                          local_begin >= 0 && local_begin + size <= size_of(pieces),
                      op, ": a piece must be within the tensor's dim of ", shape[dim], " and the slice's of ",
                      size_of(pieces), "; got ", size, " at ", global_begin, " and ", local_begin,
                      " [SW0420]");
  }
}

void check_local(const char* op, const at::Tensor& local, std::vector<int64_t> shape, int64_t dim,
                 const Pieces& pieces) {
  if (!pieces.empty()) {
    check_pieces(op, shape, dim, pieces);
    shape[dim] = size_of(pieces);
  }
  check_on_cpu(op, local);
  check_output(op, "the local slice", local, shape, local.scalar_type());
}

template <class T>
void fill_run(T* to, int64_t first, int64_t size, uint64_t key, const Distribution& distribution) {
  double z[kRandomChunk];
  for (int64_t i = 0; i < size;) {
    const int64_t element = first + i, skipped = element % 2;
    distribution.chunk(z, static_cast<uint64_t>(element / 2), key);
    const int64_t count = std::min(kRandomChunk - skipped, size - i);
    for (int64_t j = 0; j < count; ++j) {
      to[i + j] = static_cast<T>(distribution.shift + distribution.scale * z[skipped + j]);
    }
    i += count;
  }
}

void fill_(const char* op, at::Tensor& local, at::IntArrayRef global_shape, int64_t dim, const Pieces& pieces,
           RandomKey key, const Distribution& distribution) {
  check_local(op, local, global_shape.vec(), dim, pieces);
  const std::vector<ElementRun> runs = runs_of(global_shape, dim, pieces);
  const int64_t count = static_cast<int64_t>(runs.size());
  const auto fill_dtype = [&]<class T>(T* to) {
    const auto fill_part = [&](const ElementRun& run, int64_t begin, int64_t end) {
      fill_run(to + run.local_begin + begin, run.global_begin + begin, end - begin, key.value, distribution);
    };
    // Parallel over the runs, or over the elements of a single run; nested parallel loops run serially.
    for_ranges(count, local.numel() / std::max<int64_t>(1, count), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        for_ranges(runs[i].size, 1, [&](int64_t begin, int64_t end) { fill_part(runs[i], begin, end); });
      }
    });
  };
  switch (local.scalar_type()) {
    case at::kDouble:
      return fill_dtype(local.mutable_data_ptr<double>());
    case at::kFloat:
      return fill_dtype(local.mutable_data_ptr<float>());
    case at::kBFloat16:
      return fill_dtype(local.mutable_data_ptr<at::BFloat16>());
    case at::kHalf:
      return fill_dtype(local.mutable_data_ptr<at::Half>());
    default:
      TORCH_CHECK_VALUE(false, op, ": dtype must be fp64, fp32, bf16 or fp16; got ", local.scalar_type(),
                        " [SW0421]");
  }
}

}  // namespace

RandomKey RandomKey::of(uint64_t seed) {
  return RandomKey{}.fold(seed);
}

RandomKey RandomKey::fold(uint64_t data) const {
  const base::PhiloxBlock block = base::philox(data, base::PhiloxUse::fold, value);
  return {(uint64_t{block.word[1]} << 32) | block.word[0]};
}

void fill_normal_(at::Tensor& local, const std::vector<int64_t>& global_shape, int64_t dim,
                  const Pieces& pieces, RandomKey key, double mean, double std) {
  fill_("fill_normal", local, global_shape, dim, pieces, key, {random_loops<double>().normal, mean, std});
}

void fill_uniform_(at::Tensor& local, const std::vector<int64_t>& global_shape, int64_t dim,
                   const Pieces& pieces, RandomKey key, double low, double high) {
  fill_("fill_uniform", local, global_shape, dim, pieces, key,
        {random_loops<double>().uniform, low, high - low});
}

}  // namespace shardwise::kernels
