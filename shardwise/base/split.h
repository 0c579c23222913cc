// How one dimension is dealt to the ranks, and how a parameter refers to it. Arithmetic only: no tensors
// here.
//
// A model has a handful of Splits (query heads, KV heads, ffn, vocabulary, sequence); each parameter's
// ShardRule names the ones that cut it. Initializing, loading, saving, gradient sync and the norm all read
// these two.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardwise::base {

/// A half-open run of indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

/// The blocks of `block` elements that `elements` touch; none of an empty range.
Range blocks_of(const Range& elements, int64_t block);

/// `size` elements over `ranks`; each rank holds one contiguous run, possibly empty.
class Split {
 public:
  /// Deals units of `granule` elements as evenly as possible; the first ranks get the remainder.
  /// Errors: c10::ValueError when size < 0, ranks < 1 or granule < 1.
  static Split even(std::string name, int64_t size, int ranks, int64_t granule = 1);

  /// The KV heads that each rank's query heads need: `query` holds `query.size() / kv_heads` heads per KV
  /// head. Ranges may overlap (a KV head needed by two ranks is held by both).
  static Split kv_heads_of(const Split& query, int64_t kv_heads);

  /// Where `split`'s indices stand for `unit` elements each and `block` elements are stored as one: the
  /// blocks that each rank's range touches. A block that a boundary cuts is held by both.
  static Split blocks_of(std::string name, const Split& split, int64_t unit, int64_t block);

  /// One rank holds all of it.
  static Split whole(std::string name, int64_t size) { return even(std::move(name), size, 1); }

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  int ranks() const { return static_cast<int>(ranges_.size()); }
  Range range(int rank) const { return ranges_.at(rank); }
  int64_t largest() const;
  /// Every rank holds the same number of elements.
  bool is_uniform() const;
  /// No index is held twice.
  bool is_partition() const;
  /// The ranks that hold `index`, ascending.
  std::vector<int> holders(int64_t index) const;
  /// The part of `range(rank)` whose lowest holder is `rank`: what it saves and counts in the global norm.
  Range owned(int rank) const;
  /// The same on every rank that built the same split; travels in collective headers to catch mismatches.
  uint64_t hash() const { return hash_; }

 private:
  Split(std::string name, int64_t size, std::vector<Range> ranges);

  std::string name_;
  int64_t size_;
  std::vector<Range> ranges_;
  uint64_t hash_;
};

/// One run of rows (or columns) of a fused parameter, cut by one split: q, k and v of a fused q|k|v weight.
struct Segment {
  Split split;
  int64_t unit = 1;  // elements of the parameter's dim per index of the split (head_dim for heads)
  int64_t size() const { return split.size() * unit; }
  Range range(int rank) const;
  Range owned(int rank) const;
};

/// Which slice of a parameter each rank holds: dim `dim` is the concatenation of `segments`, each cut by its
/// split. No segments: every rank holds the whole.
struct ShardRule {
  int64_t dim = 0;
  std::vector<Segment> segments;

  static ShardRule replicated() { return {}; }
  static ShardRule cut(int64_t dim, const Split& split, int64_t unit = 1) { return {dim, {{split, unit}}}; }

  bool is_replicated() const { return segments.empty(); }
  /// Every element has one holder.
  bool is_partition() const;
  int64_t local_size(int rank) const;  // along dim
  std::vector<int64_t> local_shape(std::vector<int64_t> global_shape, int rank) const;

  /// A run along `dim` that a rank holds: where it lies in the whole and in the rank's slice.
  struct Piece {
    int64_t global_begin, local_begin, size;
  };
  std::vector<Piece> pieces(int rank) const;
  /// Only what the rank owns (see Split::owned): over the ranks, every element of a cut parameter exactly
  /// once.
  std::vector<Piece> owned_pieces(int rank) const;
};

}  // namespace shardwise::base
