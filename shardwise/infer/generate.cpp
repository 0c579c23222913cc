#include "shardwise/infer/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <list>

#include "shardwise/base/clock.h"
#include "shardwise/infer/candidates.h"
#include "shardwise/infer/ids.h"

namespace shardwise::infer {

using model::DecoderWeights;

namespace {

/// A text in the batch.
struct Text {
  size_t request;
  std::vector<int64_t> tokens;  // the prompt and what has been chosen
  nn::Cache cache;              // of the tokens that a forward has seen
  int64_t due_rows = 0;         // of the next forward

  int64_t unseen() const { return static_cast<int64_t>(tokens.size()) - cache.length; }
  bool is_read() const { return unseen() == due_rows; }
};

class Run {
 public:
  Run(const DecoderWeights& weights, const std::vector<Request>& requests,
      const std::vector<int64_t>& end_ids, const Batching& batching, const OnToken& on_token)
      : weights_(weights), requests_(requests), end_ids_(end_ids), batching_(batching), on_token_(on_token) {
    result_.texts.resize(requests.size());
  }

  Generated whole() {
    for (admit(); !batch_.empty(); admit()) {
      const base::Stopwatch clock;
      share_out_rows();
      const int64_t read = prompt_rows();
      const Outcome outcome = forward();
      append_chosen(outcome);
      note(read, std::ssize(outcome.texts), clock.seconds());
    }
    return std::move(result_);
  }

 private:
  void admit() {
    for (; next_ < requests_.size() && std::ssize(batch_) < batching_.texts; ++next_) {
      const Request& request = requests_[next_];
      if (request.max_new_tokens == 0) continue;
      const auto& kv_heads = weights_.layout().kv_heads;
      batch_.push_back(
          {next_, request.prompt,
           nn::Cache::empty(weights_.config().num_hidden_layers,
                            kv_heads.range(weights_.group().rank()).size(), weights_.config().head_dim,
                            cache_capacity(request), weights_.dtype())});
    }
  }

  /// Texts that are being continued go first: nobody waits for another's prompt.
  void share_out_rows() {
    int64_t left = batching_.rows;
    for (Text& text : batch_) {
      text.due_rows = text.unseen() == 1 ? 1 : 0;
      left -= text.due_rows;
    }
    for (Text& text : batch_) {
      if (text.unseen() == 1) continue;
      text.due_rows = std::min(text.unseen(), std::max<int64_t>(left, 0));
      left -= text.due_rows;
    }
  }

  int64_t prompt_rows() const {
    int64_t rows = 0;
    for (const Text& text : batch_) {
      const bool is_read = text.cache.length >= std::ssize(requests_[text.request].prompt);
      rows += is_read ? 0 : text.due_rows;
    }
    return rows;
  }

  /// Runs the due rows and returns the texts whose next token is due, with the logits [their number, v/t].
  struct Outcome {
    std::vector<std::list<Text>::iterator> texts;
    at::Tensor logits;
  };

  Outcome forward() {
    std::vector<nn::CachedRows> rows;
    std::vector<int64_t> ids, last_rows;
    Outcome outcome;
    for (auto text = batch_.begin(); text != batch_.end(); ++text) {
      if (text->due_rows == 0) continue;
      const auto first = text->tokens.begin() + text->cache.length;
      ids.insert(ids.end(), first, first + text->due_rows);
      if (text->is_read()) {
        last_rows.push_back(std::ssize(ids) - 1);
        outcome.texts.push_back(text);
      }
      rows.push_back({&text->cache, text->due_rows});
    }
    nn::Step step(weights_.group(), std::ssize(ids));
    step.cached = std::move(rows);
    const model::Decoder<nn::Invariant> decoder(weights_);
    outcome.logits =
        decoder.next_logits(as_column(ids), as_column(last_rows).select(1, 0), step).local().select(1, 0);
    for (const auto& [cache, count] : step.cached) cache->length += count;
    return outcome;
  }

  void note(int64_t read, int64_t written, double seconds) {
    Timings& timings = result_.timings;
    timings.read_tokens += read;
    timings.written_tokens += read > 0 ? 0 : written;
    (read > 0 ? timings.read_seconds : timings.written_seconds) += seconds;
  }

  static at::Tensor as_column(const std::vector<int64_t>& ids) {
    at::Tensor column = at::empty({std::ssize(ids), 1}, at::kLong);
    std::copy(ids.begin(), ids.end(), column.mutable_data_ptr<int64_t>());
    return column;
  }

  void append_chosen(const Outcome& outcome) {
    if (outcome.texts.empty()) return;  // only parts of prompts
    std::vector<Due> due;
    for (const auto& text : outcome.texts) {
      const Request& request = requests_[text->request];
      due.push_back({&text->tokens, request.sampling, request.wants_logprobs});
    }
    const std::vector<Choice> choices =
        choose_tokens(outcome.logits, weights_.layout().vocab, due, weights_.group());
    for (size_t i = 0; i < choices.size(); ++i) append(outcome.texts[i], choices[i]);
  }

  void append(std::list<Text>::iterator text, const Choice& choice) {
    Completion& result = result_.texts[text->request];
    text->tokens.push_back(choice.id);
    result.ids.push_back(choice.id);
    if (requests_[text->request].wants_logprobs) result.logprobs.push_back(choice.logprob);
    const bool goes_on = !on_token_ || on_token_(text->request, choice.id);
    const bool is_end = std::ranges::count(end_ids_, choice.id) > 0;
    const bool is_full = std::ssize(result.ids) == requests_[text->request].max_new_tokens;
    if (goes_on && !is_end && !is_full) return;
    result.finish_reason = is_end ? FinishReason::end : goes_on ? FinishReason::length : FinishReason::stop;
    batch_.erase(text);
  }

  const DecoderWeights& weights_;
  const std::vector<Request>& requests_;
  const std::vector<int64_t>& end_ids_;
  const Batching& batching_;
  const OnToken& on_token_;
  size_t next_ = 0;  // of the requests that wait
  std::list<Text> batch_;
  Generated result_;
};

}  // namespace

void check_request(const Request& request, const model::Config& config, const std::string& where) {
  const auto& [prompt, max_new_tokens, sampling, wants_logprobs] = request;
  TORCH_CHECK_VALUE(!prompt.empty(), where, ": the prompt must hold a token; got none");
  check_ids(prompt, config, where + ": the prompt's");
  TORCH_CHECK_VALUE(max_new_tokens >= 0, where, ": max_new_tokens must not be negative; got ",
                    max_new_tokens);
  TORCH_CHECK_VALUE(max_new_tokens <= config.max_position_embeddings - std::ssize(prompt), where,
                    ": prompt and new tokens must fit max_position_embeddings, ",
                    config.max_position_embeddings, "; got ", prompt.size(), " and ", max_new_tokens);
  check_sampling(sampling, where);
}

int64_t cache_capacity(const Request& request) {
  return std::ssize(request.prompt) + request.max_new_tokens - 1;
}

Generated generate(const DecoderWeights& weights, const std::vector<Request>& requests,
                   const std::vector<int64_t>& end_ids, const Batching& batching, const OnToken& on_token) {
  const at::NoGradGuard no_grad;
  for (const Request& request : requests) check_request(request, weights.config(), "generate");
  TORCH_CHECK_VALUE(batching.texts >= 1 && batching.rows >= 1,
                    "generate: a batch must hold a text and a token; got ", batching.texts, " and ",
                    batching.rows);
  return Run(weights, requests, end_ids, batching, on_token).whole();
}

}  // namespace shardwise::infer
