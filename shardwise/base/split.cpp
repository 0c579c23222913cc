#include "shardwise/base/split.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "shardwise/base/hash.h"

namespace shardwise::base {

Range intersection(const Range& a, const Range& b) {
  const int64_t begin = std::clamp(b.begin, a.begin, a.end);
  return {begin, std::clamp(b.end, begin, a.end)};
}

Range blocks_of(const Range& elements, int64_t block) {
  const int64_t begin = elements.begin / block;
  return {begin, elements.empty() ? begin : (elements.end + block - 1) / block};
}

Range even_range(int64_t size, int ranks, int rank, int64_t granule) {
  const int64_t units = size / granule + (size % granule != 0);  // the last one may be incomplete
  const int64_t share = units / ranks, remainder = units % ranks;
  const auto begin_of = [&](int64_t r) {
    const int64_t before = r * share + std::min(r, remainder);
    return before > size / granule ? size : before * granule;
  };
  return {begin_of(rank), begin_of(int64_t{rank} + 1)};
}

Split::Split(std::string name, int64_t size, std::vector<Range> ranges)
    : name_(std::move(name)),
      size_(size),
      ranges_(std::make_shared<std::vector<Range>>(std::move(ranges))),
      hash_(kHashBegin) {
  for (const Range& range : *ranges_) hash_ = mix(mix(hash_, range.begin), range.end);
  hash_ = mix(hash_, size_);
}

Split Split::even(std::string name, int64_t size, int ranks, int64_t granule) {
  TORCH_CHECK_VALUE(size >= 0 && ranks >= 1 && granule >= 1, "split ", name,
                    ": size >= 0, ranks >= 1 and granule >= 1; got ", size, ", ", ranks, ", ", granule,
                    " [SW0391]");
  std::vector<Range> ranges;
  ranges.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) ranges.push_back(even_range(size, ranks, rank, granule));
  return {std::move(name), size, std::move(ranges)};
}

Split Split::kv_heads_of(const Split& query, int64_t kv_heads) {
  TORCH_CHECK_VALUE(kv_heads >= 1 && query.size() % kv_heads == 0,
                    "kv heads: must divide the number of query heads; got ", kv_heads, " for ", query.size(),
                    " [SW0392]");
  const int64_t group = query.size() / kv_heads;
  std::vector<Range> ranges;
  ranges.reserve(query.ranks());
  for (int rank = 0; rank < query.ranks(); ++rank) {
    ranges.push_back(base::blocks_of(query.range(rank), group));
  }
  return {"kv_heads", kv_heads, std::move(ranges)};
}

Split Split::blocks_of(std::string name, const Split& split, int64_t unit, int64_t block) {
  TORCH_CHECK_VALUE(unit >= 1 && block >= 1, "split ", name, ": unit >= 1 and block >= 1; got ", unit, ", ",
                    block, " [SW0393]");
  std::vector<Range> ranges;
  for (const Range& range : *split.ranges_) {
    ranges.push_back(base::blocks_of({range.begin * unit, range.end * unit}, block));
  }
  return {std::move(name), base::blocks_of({0, split.size() * unit}, block).size(), std::move(ranges)};
}

Split Split::of_sizes(std::string name, const std::vector<int64_t>& sizes) {
  TORCH_CHECK_VALUE(!sizes.empty() && std::ranges::min(sizes) >= 0, "split ", name,
                    ": one size or more, none negative; got ", sizes.size(), " with the smallest ",
                    sizes.empty() ? 0 : std::ranges::min(sizes), " [SW0865]");
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return {std::move(name), begin, std::move(ranges)};
}

int64_t Split::largest() const {
  int64_t largest = 0;
  for (const Range& range : *ranges_) largest = std::max(largest, range.size());
  return largest;
}

bool Split::is_uniform() const {
  return std::all_of(ranges_->begin(), ranges_->end(),
                     [&](const Range& r) { return r.size() == ranges_->front().size(); });
}

bool Split::is_partition() const {
  const int64_t held = std::accumulate(ranges_->begin(), ranges_->end(), int64_t{0},
                                       [](int64_t sum, const Range& r) { return sum + r.size(); });
  return held == size_;
}

std::vector<int> Split::holders(int64_t index) const {
  std::vector<int> ranks_holding;
  for (int rank = 0; rank < ranks(); ++rank) {
    const Range range = ranges_->at(rank);
    if (range.begin <= index && index < range.end) ranks_holding.push_back(rank);
  }
  return ranks_holding;
}

Range Split::owned(int rank) const {
  // Ranges ascend, so lower ranks hold a prefix of this range.
  Range range = ranges_->at(rank);
  for (int lower = 0; lower < rank; ++lower) {
    const Range& held = (*ranges_)[lower];
    if (!held.empty()) range.begin = std::max(range.begin, std::min(held.end, range.end));
  }
  return range;
}

Range Segment::range(int rank) const {
  const Range heads = split.range(rank);
  return {heads.begin * unit, heads.end * unit};
}

Range Segment::owned(int rank) const {
  const Range heads = split.owned(rank);
  return {heads.begin * unit, heads.end * unit};
}

bool ShardRule::is_partition() const {
  return std::all_of(segments.begin(), segments.end(),
                     [](const Segment& s) { return s.split.is_partition(); });
}

int64_t ShardRule::local_size(int rank) const {
  int64_t size = 0;
  for (const Segment& segment : segments) size += segment.range(rank).size();
  return size;
}

std::vector<int64_t> ShardRule::local_shape(std::vector<int64_t> global_shape, int rank) const {
  if (!is_replicated()) global_shape.at(dim) = local_size(rank);
  return global_shape;
}

std::vector<ShardRule::Piece> ShardRule::pieces(int rank) const {
  std::vector<Piece> pieces;
  int64_t segment_begin = 0, local_begin = 0;
  for (const Segment& segment : segments) {
    const Range range = segment.range(rank);
    pieces.push_back({segment_begin + range.begin, local_begin, range.size()});
    segment_begin += segment.size();
    local_begin += range.size();
  }
  return pieces;
}

std::vector<ShardRule::Piece> ShardRule::owned_pieces(int rank) const {
  std::vector<Piece> owned = pieces(rank);
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t skipped = segments[i].owned(rank).begin - segments[i].range(rank).begin;
    owned[i].global_begin += skipped;
    owned[i].local_begin += skipped;
    owned[i].size = segments[i].owned(rank).size();
  }
  return owned;
}

}  // namespace shardwise::base
