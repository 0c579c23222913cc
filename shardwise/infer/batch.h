// The sequences that go through forwards together, and which of their tokens the next forward has.
#pragma once
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/infer/request.h"
#include "shardwise/nn/cache.h"

namespace shardwise::infer {

/// Returns how the sequences that are generated at once, at most `sequences` of `requests`, are split into
/// batches: into one for each of `stages` pipeline stages, or for each sequence, if there are fewer.
base::Split batch_sizes(int64_t requests, int64_t sequences, int stages);

/// A sequence in a batch.
struct Sequence {
  size_t request;                   // its number
  std::vector<int64_t> tokens;      // prompt and generated tokens
  nn::Cache cache;                  // keys and values of the processed tokens
  int64_t scheduled_rows = 0;       // tokens in the next forward, without drafted ones
  std::vector<int64_t> draft = {};  // in the next forward after them

  /// Returns the number of tokens that no forward has had.
  int64_t unprocessed() const { return static_cast<int64_t>(tokens.size()) - cache.length; }
  /// Returns true if the next forward gives the logits of the next token.
  bool finishes_input() const { return unprocessed() == scheduled_rows; }
};

/// The tokens of one forward, packed.
struct PackedTokens {
  std::vector<int64_t> ids;
  std::vector<nn::CachedRows> sequences;                // with their numbers of rows
  std::vector<int64_t> sampled_rows;                    // those after which a token is sampled
  std::vector<std::list<Sequence>::iterator> sampling;  // the sequences with such rows, in their order
  int64_t prompt_tokens = 0;                            // tokens of prompts

  /// Returns true if sequences have few rows, and each row is followed by a sampled token.
  bool is_decoding() const;
};

/// Sequences that are processed together.
class Batch {
 public:
  /// For at most `most` sequences of `requests`, which must outlive this.
  Batch(std::span<const Request> requests, int64_t most) : requests_(requests), most_(most) {}

  /// Returns true if another sequence may enter.
  bool has_room() const { return std::ssize(sequences_) < most_; }
  bool empty() const { return sequences_.empty(); }
  void add(Sequence sequence) { sequences_.push_back(std::move(sequence)); }
  void remove(std::list<Sequence>::iterator sequence) { sequences_.erase(sequence); }

  /// Schedules the tokens of the next forward and returns them, of at least one sequence. `equal_rows`: up to
  /// how many rows have the bits that each has alone, which limits drafts. The caller advances the caches'
  /// lengths.
  PackedTokens next_forward(const Batching& batching, int64_t equal_rows);

 private:
  void schedule_rows(const Batching& batching, int64_t equal_rows);
  void draft(int64_t most_for_each, int64_t available);
  int64_t prompt_tokens() const;
  std::span<const Request> requests_;
  int64_t most_;
  std::list<Sequence> sequences_;
};

}  // namespace shardwise::infer
