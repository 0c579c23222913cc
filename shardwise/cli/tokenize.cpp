// `shardwise tokenize`: converts text files to a file of token ids, or lines to ids and back.
#include "shardwise/cli/tokenize.h"

#include <c10/util/Exception.h>

#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/model_source.h"
#include "shardwise/cli/signals.h"

namespace shardwise::cli {
namespace {

/// The flags that select a mode; --text and --out select the mode for files.
struct ModeFlags {
  bool lines = false, json_lines = false, decode = false;
};

void add_flags(Flags& flags, TokenizeOptions& o, ModeFlags& modes) {
  add_tokenizer_flag(flags, o.tokenizer);
  flags.on_off(
      "--special-tokens,!--no-special-tokens", o.special_tokens,
      "add the tokenizer's special tokens around a text; with --decode, print special tokens other than "
      "SentencePiece control symbols [on]");
  flags.group("Files");
  flags.values("--text PATH", o.text, "files and directories; each file is one text of less than 1 GiB");
  flags.value("--out FILE", o.out, "file to write the ids to (format: shardwise/text/token_file.h)");
  flags.value("--end-token TOKEN", o.end_token, "token to append to every text, such as <|endoftext|>");
  flags.on_off("--json", o.json, "print the summary as one JSON object");
  flags.group("Lines (from standard input to standard output)");
  flags.on_off("--lines", modes.lines, "convert each line of text to a JSON array of ids");
  flags.on_off("--json-lines", modes.json_lines, "convert each JSON string to a JSON array of ids");
  flags.on_off("--decode", modes.decode,
               "convert each JSON array of ids to a JSON string, the input of --json-lines");
}

TokenizeMode mode_of(const TokenizeOptions& o, const ModeFlags& modes) {
  const int given = modes.lines + modes.json_lines + modes.decode + (o.out || !o.text.empty());
  TORCH_CHECK_VALUE(given == 1,
                    "tokenize: exactly one of --lines, --json-lines, --decode, or --text with --out must be "
                    "given; got ",
                    given, " [SW0076]");
  if (modes.lines) return TokenizeMode::lines;
  if (modes.json_lines) return TokenizeMode::json_lines;
  return modes.decode ? TokenizeMode::decode : TokenizeMode::files;
}

void check_values(const TokenizeOptions& o) {
  if (o.mode != TokenizeMode::files) {
    TORCH_CHECK_VALUE(!o.json && !o.end_token, "tokenize: --json and --end-token need --out; got ",
                      o.json ? "--json" : "--end-token", " without [SW0077]");
    return;
  }
  TORCH_CHECK_VALUE(!o.text.empty(),
                    "tokenize: --text must name at least one file or directory; got none [SW0078]");
  TORCH_CHECK_VALUE(o.out, "tokenize: --out must name a file for the ids; got none [SW0079]");
}

}  // namespace

int tokenize_command(const Call& call) {
  TokenizeOptions options;
  ModeFlags modes;
  Flags flags("tokenize", "Converts text to token ids and back.");
  add_flags(flags, options, modes);
  if (!flags.parse(call.arguments)) return 0;
  TORCH_CHECK_VALUE(options.tokenizer,
                    "tokenize: --tokenizer must be bytes, a file or a directory; got none [SW0075]");
  options.mode = mode_of(options, modes);
  check_values(options);
  end_cleanly_on_signals(/*prints_reason=*/true);
  const auto tokenizer = text::load_tokenizer(*options.tokenizer);
  const bool is_files = options.mode == TokenizeMode::files;
  (is_files ? tokenize_files : tokenize_lines)(*tokenizer, options);
  return 0;
}

}  // namespace shardwise::cli
