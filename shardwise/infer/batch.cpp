#include "shardwise/infer/batch.h"

#include <algorithm>

#include "shardwise/infer/draft.h"

namespace shardwise::infer {

base::Split batch_sizes(int64_t requests, int64_t sequences, int stages) {
  const int64_t all = std::clamp<int64_t>(requests, 1, sequences);
  return base::Split::even("sequence", all, static_cast<int>(std::min<int64_t>(all, stages)));
}

bool PackedTokens::is_decoding() const {
  const auto has_few = [](const nn::CachedRows& one) { return one.rows <= nn::kRowsOneByOne; };
  return sampled_rows.size() == ids.size() && std::ranges::all_of(sequences, has_few);
}

PackedTokens Batch::next_forward(const Batching& batching, int64_t equal_rows) {
  schedule_rows(batching, equal_rows);
  PackedTokens packed{.prompt_tokens = prompt_tokens()};
  std::vector<int64_t>& ids = packed.ids;
  for (auto sequence = sequences_.begin(); sequence != sequences_.end(); ++sequence) {
    if (sequence->scheduled_rows == 0) continue;
    const auto first = sequence->tokens.begin() + sequence->cache.length;
    ids.insert(ids.end(), first, first + sequence->scheduled_rows);
    if (sequence->finishes_input()) {
      packed.sampled_rows.push_back(std::ssize(ids) - 1);
      packed.sampling.push_back(sequence);
    }
    for (const int64_t id : sequence->draft) {
      packed.sampled_rows.push_back(std::ssize(ids));
      ids.push_back(id);
    }
    packed.sequences.push_back({&sequence->cache, sequence->scheduled_rows + std::ssize(sequence->draft)});
  }
  return packed;
}

/// Assigns rows to sequences in decode first, so that they never wait for another sequence's prefill.
void Batch::schedule_rows(const Batching& batching, int64_t equal_rows) {
  int64_t available = batching.rows;
  for (Sequence& sequence : sequences_) {
    sequence.scheduled_rows = sequence.unprocessed() == 1 ? 1 : 0;
    available -= sequence.scheduled_rows;
  }
  int64_t waiting = 0;
  for (Sequence& sequence : sequences_) {
    if (sequence.unprocessed() == 1) continue;
    sequence.scheduled_rows = std::min(sequence.unprocessed(), std::max<int64_t>(available, 0));
    available -= sequence.scheduled_rows;
    ++waiting;
  }
  const int64_t rows = waiting == 0 ? std::min(batching.rows, equal_rows) - std::ssize(sequences_) : 0;
  draft(batching.drafted, std::max<int64_t>(rows, 0));
}

/// Drafts at most `available` tokens, shared evenly by the sequences, of which all are in decode or none.
void Batch::draft(int64_t most_for_each, int64_t available) {
  for (Sequence& sequence : sequences_) {
    const Request& request = requests_[sequence.request];
    const int64_t left = std::ssize(request.prompt) + request.max_new_tokens - std::ssize(sequence.tokens);
    const int64_t share = available / std::ssize(sequences_);
    sequence.draft = draft_of(sequence.tokens, std::min({most_for_each, share, left - 1}));
  }
}

int64_t Batch::prompt_tokens() const {
  int64_t rows = 0;
  for (const Sequence& sequence : sequences_) {
    const bool is_decoding = sequence.cache.length >= std::ssize(requests_[sequence.request].prompt);
    rows += is_decoding ? 0 : sequence.scheduled_rows;
  }
  return rows;
}

}  // namespace shardwise::infer
