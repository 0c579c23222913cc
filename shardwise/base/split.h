// How one dimension is partitioned over the ranks, and how a parameter is sharded by it. Index arithmetic
// only, no tensors.
//
// A model has a few Splits (query heads, KV heads, ffn, vocabulary, sequence), and each parameter's ShardRule
// lists the Splits that shard it. Initialization, loading, saving, gradient sync and the gradient norm all
// use these two.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardwise::base {

/// A half-open range of indices.
struct Range {
  int64_t begin = 0;  // the first index
  int64_t end = 0;    // one past the last index
  /// Returns the number of indices.
  int64_t size() const { return end - begin; }
  /// Returns true if there are no indices.
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

/// Returns the indices that are in both; an empty range within `a` if there are none.
Range intersection(const Range& a, const Range& b);

/// Returns the blocks of `block` elements that overlap `elements`; an empty range if `elements` is empty.
Range blocks_of(const Range& elements, int64_t block);

/// Returns what `rank` holds if units of `granule` of `size` elements are partitioned as evenly as possible;
/// the first ranks get the remainder. Arguments as in Split::even, with `rank` in [0, ranks).
Range even_range(int64_t size, int ranks, int rank, int64_t granule = 1);

/// A partition of `size` elements over `ranks` ranks. Each rank holds one contiguous range, possibly empty.
/// Copies share the ranges, because every parameter of a model keeps a copy.
class Split {
 public:
  /// Partitions units of `granule` elements as even_range does.
  /// Errors: c10::ValueError if size < 0, ranks < 1 or granule < 1.
  static Split even(std::string name, int64_t size, int ranks, int64_t granule = 1);

  /// Returns the KV heads that each rank's query heads use; `query` has `query.size() / kv_heads` query heads
  /// per KV head. Ranges may overlap: a KV head that two ranks use is replicated on both.
  static Split kv_heads_of(const Split& query, int64_t kv_heads);

  /// Returns the blocks of `block` elements that each rank's range overlaps, where one index of `split`
  /// stands for `unit` elements. A block that straddles a boundary is replicated on both ranks.
  static Split blocks_of(std::string name, const Split& split, int64_t unit, int64_t block);

  /// Returns a partition into consecutive ranges of the given sizes, by rank.
  /// Errors: c10::ValueError if there is none, or a negative one.
  static Split of_sizes(std::string name, const std::vector<int64_t>& sizes);

  /// Returns the trivial partition: one rank holds all elements.
  static Split unsharded(std::string name, int64_t size) { return even(std::move(name), size, 1); }

  /// Returns the name, which errors print.
  const std::string& name() const { return name_; }
  /// Returns the number of elements over all ranks; replicated elements count once.
  int64_t size() const { return size_; }
  /// Returns the number of ranks.
  int ranks() const { return static_cast<int>(ranges_->size()); }
  /// Returns the elements that `rank` holds. Errors: std::out_of_range if there is no such rank.
  Range range(int rank) const { return ranges_->at(rank); }
  /// Returns the size of the largest range.
  int64_t largest() const;
  /// Returns true if every rank holds the same number of elements.
  bool is_uniform() const;
  /// Returns true if no index is replicated.
  bool is_partition() const;
  /// Returns the ranks that hold `index`, in ascending order.
  std::vector<int> holders(int64_t index) const;
  /// Returns the part of `range(rank)` that no lower rank holds. `rank` saves it and counts it in the norm.
  Range owned(int rank) const;
  /// Returns a hash, equal for equal splits. Collectives send it in their headers to detect mismatches.
  uint64_t hash() const { return hash_; }

 private:
  Split(std::string name, int64_t size, std::vector<Range> ranges);

  std::string name_;
  int64_t size_;
  std::shared_ptr<const std::vector<Range>> ranges_;
  uint64_t hash_;
};

/// A range of rows (or columns) of a fused parameter that is sharded by one split, such as q, k or v of a
/// fused q|k|v weight.
struct Segment {
  Split split;       // of the segment's indices
  int64_t unit = 1;  // elements of the parameter's dim per index of the split (head_dim for heads)
  /// Returns the number of elements along the parameter's dim.
  int64_t size() const { return split.size() * unit; }
  /// Returns the elements of the segment that `rank` holds.
  Range range(int rank) const;
  /// Returns the elements of the segment that `rank` owns (see Split::owned).
  Range owned(int rank) const;
};

/// Which slice of a parameter each rank holds. Dim `dim` is the concatenation of `segments`, each sharded by
/// its split. Without segments the parameter is replicated.
struct ShardRule {
  int64_t dim = 0;                // the sharded dim
  std::vector<Segment> segments;  // their concatenation; empty: replicated

  /// Returns the rule of a parameter that every rank holds completely.
  static ShardRule replicated() { return {}; }
  /// Returns the rule of a parameter with one segment along `dim`.
  static ShardRule sharded(int64_t dim, const Split& split, int64_t unit = 1) {
    return {dim, {{split, unit}}};
  }

  /// Returns true if every rank holds the full parameter.
  bool is_replicated() const { return segments.empty(); }
  /// Returns true if every element is on exactly one rank.
  bool is_partition() const;
  int64_t local_size(int rank) const;  // along dim
  /// Returns the shape of the slice that `rank` holds of a parameter with `global_shape`.
  std::vector<int64_t> local_shape(std::vector<int64_t> global_shape, int rank) const;

  /// A range along `dim` that a rank holds: its offsets in the unsharded parameter and in the rank's slice.
  struct Piece {
    int64_t global_begin;  // in the unsharded parameter
    int64_t local_begin;   // in the rank's slice
    int64_t size;          // elements along `dim`
  };
  /// Returns the ranges that `rank` holds, one for each segment, possibly empty.
  std::vector<Piece> pieces(int rank) const;
  /// Returns only the pieces that the rank owns (see Split::owned). Over all ranks, these cover every element
  /// of a sharded parameter exactly once.
  std::vector<Piece> owned_pieces(int rank) const;
};

}  // namespace shardwise::base
