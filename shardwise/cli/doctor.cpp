// `shardwise doctor`: whether a model computes at TP=N what it does at TP=1, and where it parts from it.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "shardwise/base/console.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/doctor_report.h"
#include "shardwise/cli/job_directory.h"
#include "shardwise/cli/loaded_model.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/comm/launch.h"
#include "shardwise/doctor/examine.h"
#include "shardwise/doctor/vectors.h"
#include "shardwise/infer/ids.h"
#include "shardwise/text/corpus.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kSequences = 2, kLength = 64, kShortest = 4;
constexpr int64_t kBytesPerToken = 256;  // no tokenizer needs more on average

struct DoctorOptions {
  ModelOptions model;
  std::vector<std::string> text;
  std::optional<int64_t> seq_len;
  uint64_t seed = 0;
  bool json = false;
};

void add_flags(Flags& flags, DoctorOptions& o) {
  add_model_flags(flags, o.model);
  flags.values("--text PATH", o.text,
               "files or directories whose first tokens are taken [ids drawn from --seed]");
  flags.value("--seq-len N", o.seq_len, "tokens of each of the two sequences, at least 4 [64, or what fits]");
  flags.value("--seed N", o.seed,
              "of dropout's masks, of the ids without --text, and of --load-format dummy's weights [0]");
  flags.on_off("--json", o.json, "one JSON object instead of the text for people");
}

int64_t length_of(const DoctorOptions& o, const model::Config& config) {
  const int64_t most = config.max_position_embeddings, length = o.seq_len.value_or(std::min(kLength, most));
  TORCH_CHECK_VALUE(length >= kShortest && length <= most,
                    "doctor: --seq-len must lie between 4 and max_position_embeddings, ", most, "; got ",
                    length);
  return length;
}

/// The first `count` ids of the files, one behind the other; of a large text its beginning alone is read.
std::vector<int64_t> read_ids(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer,
                              int64_t count) {
  const text::Corpus corpus(paths);
  std::string bytes(static_cast<size_t>(std::min(corpus.size(), count * kBytesPerToken)), '\0');
  corpus.read(0, std::ssize(bytes), reinterpret_cast<uint8_t*>(bytes.data()));
  std::vector<int64_t> ids = tokenizer.encode(bytes);
  TORCH_CHECK_VALUE(std::ssize(ids) >= count,
                    "doctor: --text must hold two sequences of --seq-len tokens and one more, ", count,
                    "; got ", ids.size());
  ids.resize(count);
  return ids;
}

std::vector<int64_t> draw_ids(uint64_t seed, int64_t vocab_size, int64_t count) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int64_t> id(0, vocab_size - 1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(id(random));
  return ids;
}

/// Two sequences that follow each other, one a column, and the token after each.
doctor::Tokens columns(const std::vector<int64_t>& ids, int64_t length) {
  const auto from = [&](int64_t begin) {
    const at::Tensor rows = at::empty({kSequences, length}, at::kLong);
    std::copy_n(ids.begin() + begin, rows.numel(), rows.mutable_data_ptr<int64_t>());
    return rows.t().contiguous();
  };
  return {from(0), from(1)};
}

doctor::Tokens tokens_of(const DoctorOptions& o, const NamedModel& model) {
  const int64_t length = length_of(o, model.config()), count = kSequences * length + 1;
  if (o.text.empty()) return columns(draw_ids(o.seed, model.config().vocab_size, count), length);
  const std::vector<int64_t> ids = read_ids(o.text, *model.tokenizer(), count);
  infer::check_ids(ids, model.config(), "doctor: the text's");
  return columns(ids, length);
}

/// Lines in color where there is a terminal.
void show(const std::vector<ReportLine>& lines) {
  base::Console out(STDOUT_FILENO);
  for (const auto& [text, color] : lines) out.is_terminal() ? out.line(text, color) : print(text + "\n");
}

}  // namespace

int doctor_command(const Call& call) {
  DoctorOptions o;
  RankOptions ranks;
  Flags flags(
      "doctor",
      "Runs a model at TP=1 and at TP=N, with and without sequence parallelism, forward and backward, "
      "and says layer by layer how far they are apart: rounding, or a bug and where. Then trains a model "
      "of the same kind in small for a few steps, saves and resumes it, and holds text, optimizer, "
      "checkpoint and logits against formulas (some MB below TMPDIR, removed at the end). Rank 0 holds "
      "the unsharded model in fp64: 32 bytes a parameter beside the 24/N of every rank; the others wait "
      "for it (--timeout). Exit code 0: all holds; 3: it does not.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("doctor", ranks);
  const NamedModel model("doctor", o.model);
  TORCH_CHECK_VALUE(o.model.tp >= 2, "doctor: --tp must be at least 2, to be compared with TP=1; got ",
                    o.model.tp);
  TORCH_CHECK_VALUE(!model.config().quantization,
                    "doctor: the weights must be ordinary ones, for backward goes through them; got ",
                    model.config().quantization->text());
  TORCH_CHECK_VALUE(!o.model.tokenizer || !o.text.empty(),
                    "doctor: --tokenizer must come with the --text that it encodes; got ",
                    o.model.tokenizer.value_or(""), " alone");
  const doctor::Tokens tokens = tokens_of(o, model);
  const doctor::Subject subject{model.config(), model.dtype(), [&](model::DecoderWeights& weights) {
                                  model.load(weights, o.seed);
                                  if (o.model.load_format == "dummy") doctor::draw_vectors_(weights, o.seed);
                                }};
  const comm::LaunchContext place = place_for(o.model.tp);
  const JobDirectory directory(place);
  base::Console& console = base::Console::standard_error();
  int found = 0;
  const int ended = run_on_ranks({place, o.model.tp, ranks, call.argv}, [&](const comm::Group& group) {
    const doctor::Examination examination{
        tokens, o.seed, directory.path(group),
        [&](const std::string& part) { console.set_live("doctor: " + part); }};
    const doctor::Report report = doctor::examine(subject, examination, group);
    if (group.rank() == 0) {
      console.set_live("");
      const Examined examined{model.directory().string(), o.model.tp, model.dtype_name(), tokens.ids.size(0),
                              report};
      o.json ? print(to_json(examined)) : show(to_lines(examined));
    }
    found = report.holds ? 0 : comm::kCheckFailedExitCode;
  });
  return ended != 0 ? ended : found;
}

}  // namespace shardwise::cli
