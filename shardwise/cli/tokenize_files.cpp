#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/base/atomic_file.h"
#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/signals.h"
#include "shardwise/cli/tokenize.h"
#include "shardwise/text/corpus.h"
#include "shardwise/text/invalid_utf8.h"
#include "shardwise/text/token_file.h"

namespace shardwise::cli {
namespace {

/// Size from which a file is shown before it is encoded: some tenths of a second of work.
constexpr int64_t kLargeBytes = 1'000'000;

struct TokenizeSummary {
  int64_t files, bytes, tokens, bytes_per_id;
  double seconds;
};

std::optional<int64_t> end_id(const text::Tokenizer& tokenizer, const TokenizeOptions& o) {
  if (!o.end_token) return std::nullopt;
  const auto id = tokenizer.id_of(*o.end_token);
  TORCH_CHECK_VALUE(id, "tokenize: --end-token must be a token of the vocabulary; got ",
                    base::shortened(*o.end_token), " [SW0080]");
  return id;
}

/// Shows a large file on the progress line before it is encoded in one call, which takes seconds.
void announce(const text::Corpus& corpus, int64_t file, int64_t done, ProgressLine& line) {
  const int64_t bytes = corpus.file_size(file);
  if (bytes < kLargeBytes) return;
  line.show_bytes_at_once(
      "tokenize", done, corpus.size(),
      fmt::format("{:.1f} MB of {}", static_cast<double>(bytes) / 1e6, base::shown(corpus.file_path(file))));
}

TokenizeSummary write_tokens(const text::Tokenizer& tokenizer, const text::Corpus& corpus,
                             const TokenizeOptions& o) {
  const base::Stopwatch clock;
  const auto end = end_id(tokenizer, o);
  const std::string temporary = base::temporary_beside(*o.out);
  const RemovedOnSignal removed(temporary);
  text::TokenFileWriter writer(*o.out, tokenizer.vocab_size(), temporary);
  ProgressLine line;
  text::InvalidUtf8 invalid;
  std::vector<int64_t> ids;
  for (int64_t file = 0, done = 0; file < corpus.file_count(); ++file) {
    announce(corpus, file, done, line);
    ids.clear();
    const std::string text = corpus.read_file(file);
    invalid.add(tokenizer, text, corpus.file_path(file));
    tokenizer.encode(text, o.specials(), ids);
    if (end) ids.push_back(*end);
    writer.append(ids);
    done += corpus.file_size(file);
    line.show_bytes("tokenize", done, corpus.size());
  }
  writer.finish();
  invalid.warn("tokenize");
  return {corpus.file_count(), corpus.size(), writer.count(), writer.bytes_per_id(), clock.seconds()};
}

/// Returns the paths of text and tokenizer, none of which --out may be.
std::vector<std::string> inputs_of(const TokenizeOptions& o, const text::Corpus& corpus) {
  std::vector<std::string> inputs = corpus.paths(), more = text::tokenizer_paths(*o.tokenizer);
  inputs.insert(inputs.end(), o.text.begin(), o.text.end());
  inputs.insert(inputs.end(), more.begin(), more.end());
  return inputs;
}

void check_out(const TokenizeOptions& o, const text::Corpus& corpus) {
  const std::string& out = *o.out;
  const auto directory = std::filesystem::path(out).parent_path().string();
  TORCH_CHECK_VALUE(!base::is_directory(out), "tokenize: --out must name a file; got the directory ", out,
                    " [SW0081]");
  base::check_new_or_regular_file("tokenize: --out", out);
  TORCH_CHECK_VALUE(directory.empty() || base::is_directory(directory),
                    "tokenize: --out must be in an existing directory; got ", out, " [SW0082]");
  base::check_not_an_input("tokenize: --out", out, inputs_of(o, corpus));
}

/// Checks the size of every file, because a file is encoded in one call.
void check_lengths(const text::Corpus& corpus) {
  for (int64_t file = 0; file < corpus.file_count(); ++file) {
    TORCH_CHECK_VALUE(corpus.file_size(file) <= text::Tokenizer::kMaxTextBytes, "tokenize: --text ",
                      corpus.file_path(file), ": a file must be at most ", text::Tokenizer::kMaxTextBytes,
                      " bytes; got ", corpus.file_size(file), "; split it [SW0104]");
  }
}

std::string summary_json(const TokenizeSummary& s, const text::Tokenizer& tokenizer, const std::string& out) {
  const nlohmann::ordered_json summary{{"out", out},
                                       {"files", s.files},
                                       {"bytes", s.bytes},
                                       {"tokens", s.tokens},
                                       {"vocab_size", tokenizer.vocab_size()},
                                       {"bytes_per_id", s.bytes_per_id},
                                       {"seconds", s.seconds}};
  return json_line(summary);
}

}  // namespace

void tokenize_files(const text::Tokenizer& tokenizer, const TokenizeOptions& options) {
  const text::Corpus corpus(options.text);
  check_out(options, corpus);
  check_lengths(corpus);
  const TokenizeSummary s = write_tokens(tokenizer, corpus, options);
  print(options.json ? summary_json(s, tokenizer, *options.out)
                     : fmt::format("{} tokens of {} bytes each, from {} bytes of text in {} files: {}\n",
                                   s.tokens, s.bytes_per_id, s.bytes, s.files, *options.out));
}

}  // namespace shardwise::cli
