// `shardwise tokenize`: text files to a file of token ids, or lines to ids and back.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "shardwise/base/clock.h"
#include "shardwise/base/console.h"
#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/text/corpus.h"
#include "shardwise/text/token_file.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {
namespace {

using nlohmann::json;
using text::Specials;

struct TokenizeOptions {
  std::optional<std::string> tokenizer, out, end_token;
  std::vector<std::string> text;
  bool lines = false, json_lines = false, decode = false, special_tokens = true, json = false;
};

void add_flags(Flags& flags, TokenizeOptions& o) {
  flags.value("--tokenizer NAME", o.tokenizer, "bytes, a tokenizer.json or .model, or a folder with one");
  flags.on_off("--special-tokens,!--no-special-tokens", o.special_tokens,
               "those that the tokenizer puts around a text; --decode shows special tokens [on]");
  flags.group("Files");
  flags.values("--text PATH...", o.text, "files and folders, each file a text");
  flags.value("--out FILE", o.out, "where the ids go (layout: shardwise/text/token_file.h)");
  flags.value("--end-token TOKEN", o.end_token, "put after every text, such as <|endoftext|>");
  flags.on_off("--json", o.json, "a summary as one JSON object");
  flags.group("Lines, from standard input to standard output");
  flags.on_off("--lines", o.lines, "a line of text to a JSON array of ids");
  flags.on_off("--json-lines", o.json_lines, "a JSON string to a JSON array of ids");
  flags.on_off("--decode", o.decode, "a JSON array of ids to a JSON string, which --json-lines takes");
}

void check_values(const TokenizeOptions& o) {
  TORCH_CHECK_VALUE(o.tokenizer, "tokenize: --tokenizer names bytes, a file or a folder; got none");
  const int modes = o.lines + o.json_lines + o.decode + (o.out || !o.text.empty());
  TORCH_CHECK_VALUE(modes == 1,
                    "tokenize: one of --lines, --json-lines, --decode, or --text with --out says what to do; "
                    "got ",
                    modes);
  const bool is_line_by_line = o.lines || o.json_lines || o.decode;
  TORCH_CHECK_VALUE(!is_line_by_line || (!o.json && !o.end_token),
                    "tokenize: --json and --end-token go with --out; got ", o.json ? "--json" : "--end-token",
                    " without");
  TORCH_CHECK_VALUE(is_line_by_line || !o.text.empty(),
                    "tokenize: --text names at least one file or folder; got none");
  TORCH_CHECK_VALUE(is_line_by_line || o.out, "tokenize: --out names the file for the ids; got none");
}

Specials specials_of(const TokenizeOptions& o) {
  return o.special_tokens ? Specials::kWith : Specials::kWithout;
}

std::string shown_ids(const std::vector<int64_t>& ids) {
  std::string text = "[";
  for (const int64_t id : ids) text.append(text.size() > 1 ? ", " : "").append(std::to_string(id));
  return text + "]";
}

/// What goes wrong with a line names it.
template <class Work>
std::string of_line(int64_t number, const Work& work) {
  try {
    return work();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "line ", number, ": ", error.what_without_backtrace());
  }
}

std::string encoded(const text::Tokenizer& tokenizer, std::string_view text, const TokenizeOptions& o) {
  std::vector<int64_t> ids;
  tokenizer.encode(text, specials_of(o), ids);
  return shown_ids(ids);
}

std::string string_of(const std::string& line) {
  const json value = base::parse_json(line, "tokenize");
  TORCH_CHECK_VALUE(value.is_string(), "tokenize: --json-lines takes JSON strings; got ", base::shown(value));
  return value.get<std::string>();
}

std::string decoded(const text::Tokenizer& tokenizer, const std::string& line, const TokenizeOptions& o) {
  const json value = base::parse_json(line, "tokenize");
  const bool are_ids = value.is_array() && std::all_of(value.begin(), value.end(),
                                                       [](const json& id) { return id.is_number_integer(); });
  TORCH_CHECK_VALUE(are_ids, "tokenize: --decode takes JSON arrays of whole numbers; got ",
                    base::shown(value));
  const auto stream = tokenizer.stream(specials_of(o));
  std::string text;
  for (const json& id : value) text += stream->push(id.get<int64_t>());
  return json(text + stream->finish()).dump();
}

int run_lines(const text::Tokenizer& tokenizer, const TokenizeOptions& o) {
  std::ios::sync_with_stdio(false);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    print(of_line(number,
                  [&] {
                    if (o.decode) return decoded(tokenizer, line, o);
                    return encoded(tokenizer, o.json_lines ? string_of(line) : line, o);
                  }) +
          "\n");
  }
  return 0;
}

/// A terminal's live line: how much of the text is done.
void show_progress(int64_t done, int64_t all, double seconds) {
  const double mb = static_cast<double>(done) / 1e6;
  base::Console::standard_error().set_live(fmt::format("tokenize: {:.1f} of {:.1f} MB, {:.1f} MB/s", mb,
                                                       static_cast<double>(all) / 1e6, mb / seconds));
}

struct Summary {
  int64_t files, bytes, tokens, bytes_per_id;
  double seconds;
};

std::optional<int64_t> end_id(const text::Tokenizer& tokenizer, const TokenizeOptions& o) {
  if (!o.end_token) return std::nullopt;
  const auto id = tokenizer.id_of(*o.end_token);
  TORCH_CHECK_VALUE(id, "tokenize: --end-token must be a token of the vocabulary; got ", *o.end_token);
  return id;
}

Summary write_tokens(const text::Tokenizer& tokenizer, const text::Corpus& corpus, const TokenizeOptions& o) {
  const base::Stopwatch clock;
  const auto end = end_id(tokenizer, o);
  text::TokenFileWriter writer(*o.out, tokenizer.vocab_size());
  std::string text;
  std::vector<int64_t> ids;
  for (int64_t file = 0, done = 0; file < corpus.file_count(); ++file) {
    text.resize(corpus.file_size(file));
    corpus.read(done, corpus.file_size(file), reinterpret_cast<uint8_t*>(text.data()));
    ids.clear();
    tokenizer.encode(text, specials_of(o), ids);
    if (end) ids.push_back(*end);
    writer.append(ids);
    done += corpus.file_size(file);
    show_progress(done, corpus.size(), clock.seconds());
  }
  writer.finish();
  base::Console::standard_error().set_live("");
  return {corpus.file_count(), corpus.size(), writer.count(), writer.bytes_per_id(), clock.seconds()};
}

void check_out(const std::string& out) {
  const auto folder = std::filesystem::path(out).parent_path().string();
  TORCH_CHECK_VALUE(!base::is_folder(out), "tokenize: --out must name a file; got the folder ", out);
  const bool is_free = !base::exists(out) || std::filesystem::is_regular_file(out);
  TORCH_CHECK_VALUE(is_free, "tokenize: --out must be a regular file, or a new one; got ", out);
  TORCH_CHECK_VALUE(folder.empty() || base::is_folder(folder), "tokenize: --out must lie in a folder; got ",
                    out);
}

int run_files(const text::Tokenizer& tokenizer, const TokenizeOptions& o) {
  const text::Corpus corpus(o.text);
  check_out(*o.out);
  const Summary s = write_tokens(tokenizer, corpus, o);
  if (o.json) {
    const nlohmann::ordered_json summary{{"out", *o.out},
                                         {"files", s.files},
                                         {"bytes", s.bytes},
                                         {"tokens", s.tokens},
                                         {"vocab_size", tokenizer.vocab_size()},
                                         {"bytes_per_id", s.bytes_per_id},
                                         {"seconds", s.seconds}};
    print(summary.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  } else {
    print(fmt::format("{} tokens of {} bytes each, from {} bytes of text in {} files: {}\n", s.tokens,
                      s.bytes_per_id, s.bytes, s.files, *o.out));
  }
  return 0;
}

}  // namespace

int tokenize_command(const Call& call) {
  TokenizeOptions options;
  Flags flags("tokenize", "Text to token ids and back.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  check_values(options);
  const auto tokenizer = text::load_tokenizer(*options.tokenizer);
  const bool writes_file = options.out.has_value();
  return writes_file ? run_files(*tokenizer, options) : run_lines(*tokenizer, options);
}

}  // namespace shardwise::cli
