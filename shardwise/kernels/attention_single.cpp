#include "shardwise/kernels/attention_single.h"

#include <algorithm>
#include <cmath>

#include "shardwise/base/split.h"
#include "shardwise/kernels/attention_single_bf16.h"
#include "shardwise/kernels/attention_single_isa.h"
#include "shardwise/kernels/head_groups.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

constexpr int64_t kBlockKeys = 1024;

/// The keys of one sequence that its query attends to, for the query heads of one KV head.
struct Attended {
  int64_t sequence;
  HeadGroup heads;
  base::Range keys;
  int64_t first_block;  // of the list of all blocks
  int64_t first_part;   // row of the partial results; a block has one for each head

  int64_t blocks() const { return (keys.size() + kBlockKeys - 1) / kBlockKeys; }
  base::Range block(int64_t i) const {
    const int64_t begin = keys.begin + i * kBlockKeys;
    return {begin, std::min(begin + kBlockKeys, keys.end)};
  }
};

/// What is attended to, in the order of its blocks and partial results.
class Work {
 public:
  Work(const std::vector<KeysAndValues>& sequences, const AttentionOptions& options) {
    const std::vector<HeadGroup> groups = groups_of(options.kv_of_head);
    items_.reserve(sequences.size() * groups.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t keys = sequences[i].count;
      const base::Range attended{std::max<int64_t>(0, keys - options.window.value_or(keys)), keys};
      for (const HeadGroup& heads : groups) add({static_cast<int64_t>(i), heads, attended, blocks_, parts_});
    }
  }

  const std::vector<Attended>& items() const { return items_; }
  int64_t blocks() const { return blocks_; }
  int64_t parts() const { return parts_; }
  int64_t most_heads() const { return most_heads_; }
  /// Returns the size of the largest block.
  int64_t most_keys() const { return most_keys_; }
  /// Returns the item that contains a block of the list of all.
  const Attended& item_of(int64_t block) const {
    return *std::prev(std::ranges::upper_bound(items_, block, {}, &Attended::first_block));
  }

 private:
  void add(const Attended& item) {
    items_.push_back(item);
    const int64_t heads = item.heads.end - item.heads.begin;
    blocks_ += item.blocks();
    parts_ += item.blocks() * heads;
    most_heads_ = std::max(most_heads_, heads);
    most_keys_ = std::max(most_keys_, std::min(item.keys.size(), kBlockKeys));
  }

  std::vector<Attended> items_;
  int64_t blocks_ = 0, parts_ = 0, most_heads_ = 0, most_keys_ = 0;
};

template <class S>
StoredRows<S> rows_of(const SequenceHeads& heads, int64_t head, int64_t first_key) {
  return {static_cast<const S*>(heads.data) + head * heads.head + first_key * heads.row, heads.row,
          heads.scales ? heads.scales + head * heads.scale_head + first_key : nullptr};
}

template <class T>
AttentionSingleLoops<T> best_loops() {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (best_isa() >= Isa::avx512_bf16) return avx512_bf16::attention_single_loops();
  }
  return attention_single_loops<T>();
}

/// One call, for the element type of its queries.
template <class T>
class SingleAttention {
 public:
  using A = Accumulator<T>;

  SingleAttention(const AttentionResult& result, const at::Tensor& q,
                  const std::vector<KeysAndValues>& sequences, const Work& work)
      : result_(result),
        q_(q),
        sequences_(sequences),
        work_(work),
        parts_(empty({work.parts(), Parts::stride(d_)}, result.lse.scalar_type())) {}

  void run() const {
    const int64_t per_block = work_.most_heads() * work_.most_keys() * d_;
    for_ranges(work_.blocks(), per_block, [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = empty({loops_.scratch(work_.most_keys(), d_)}, result_.lse.scalar_type());
      for (int64_t i = begin; i < end; ++i) attend(i, elements_<A>(scratch));
    });
    for_ranges(std::ssize(work_.items()), work_.most_heads() * d_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) merge(work_.items()[size_t(i)]);
    });
  }

 private:
  using Parts = BlockRows<A>;

  Parts part(int64_t row) const { return {elements_<A>(parts_) + row * Parts::stride(d_)}; }

  /// Computes one block of the list of all.
  void attend(int64_t block, A* scratch) const {
    const Attended& item = work_.item_of(block);
    const int64_t heads = item.heads.end - item.heads.begin, number = block - item.first_block;
    const base::Range keys = item.block(number);
    const auto& [k, v, count] = sequences_[size_t(item.sequence)];
    const HeadRows<const T> query = {
        elements<T>(q_) + item.sequence * q_.stride(0) + item.heads.begin * q_.stride(1), q_.stride(1), d_};
    const auto call = [&]<class S>(auto loop, S) {
      loop(part(item.first_part + number * heads), query, rows_of<S>(k, item.heads.kv, keys.begin),
           rows_of<S>(v, item.heads.kv, keys.begin), scratch, {heads, keys.size(), d_, scale_});
    };
    k.scales ? call(loops_.attend_int8, int8_t()) : call(loops_.attend, T());
  }

  void merge(const Attended& item) const {
    const int64_t first = item.sequence * q_.size(1) + item.heads.begin;
    loops_.merge({elements_<T>(result_.out) + first * d_, d_, d_}, elements_<A>(result_.lse) + first,
                 part(item.first_part), item.blocks(), item.heads.end - item.heads.begin, d_);
  }

  const AttentionResult& result_;
  const at::Tensor& q_;
  const std::vector<KeysAndValues>& sequences_;
  const Work& work_;
  const int64_t d_ = q_.size(3);
  const double scale_ = 1 / std::sqrt(static_cast<double>(d_));
  const AttentionSingleLoops<T> loops_ = best_loops<T>();
  at::Tensor parts_;
};

}  // namespace

void attend_single(const AttentionResult& result, const at::Tensor& q,
                   const std::vector<KeysAndValues>& sequences, const AttentionOptions& options) {
  const Work work(sequences, options);
  if (work.blocks() == 0) return;
  with_element_type("attention", q,
                    [&]<class T>(T) { SingleAttention<T>(result, q, sequences, work).run(); });
}

}  // namespace shardwise::kernels
