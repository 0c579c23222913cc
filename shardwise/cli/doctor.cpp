// `shardwise doctor`: compares a model at TP=N with TP=1 and reports where they differ.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "shardwise/base/console.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/doctor_report.h"
#include "shardwise/cli/job_directory.h"
#include "shardwise/cli/model_source.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/device/device.h"
#include "shardwise/doctor/run_doctor.h"
#include "shardwise/infer/token_ids.h"
#include "shardwise/launch/launch.h"
#include "shardwise/text/corpus.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kSequences = 2, kLength = 64, kShortest = 4;
constexpr int64_t kBytesPerToken = 256;  // upper bound of any tokenizer's average

constexpr const char* kAbout =
    "Runs a model at TP=1 and at TP=N, with and without sequence parallelism, forward and backward, and "
    "reports layer by layer whether the differences are rounding or a bug. Then trains a small model of the "
    "same family for a few steps, saves and resumes it, and checks text, optimizer, checkpoint and logits "
    "against formulas, and the steps of replicas and pipeline stages against those of one rank (writes some "
    "MB to TMPDIR and removes them). Memory: 24/N bytes per parameter on every "
    "rank; rank 0 needs 32 more for the unsharded fp64 model, and the other ranks wait for it (--timeout). "
    "With --device, the runs in the model's dtype are repeated there. "
    "Exit code 0: all checks passed; 3: a check failed.";

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
               "files or directories whose first tokens are the input [random ids from --seed]");
  flags.value("--seq-len N", o.seq_len,
              "tokens per sequence, at least 4; two sequences are run [64, or what fits]");
  flags.value("--seed N", o.seed,
              "seed of dropout masks, of ids without --text, and of weights with --load-format dummy [0]");
  flags.on_off("--json", o.json, "print one JSON object instead of text");
}

int64_t length_of(const DoctorOptions& o, const config::Config& config) {
  const int64_t most = config.max_position_embeddings, length = o.seq_len.value_or(std::min(kLength, most));
  TORCH_CHECK_VALUE(length >= kShortest && length <= most,
                    "doctor: --seq-len must be from 4 to max_position_embeddings, ", most, "; got ", length,
                    " [SW0049]");
  return length;
}

/// Returns the first `count` ids of the concatenated files. Reads only the start of a large text.
std::vector<int64_t> read_ids(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer,
                              int64_t count) {
  const text::Corpus corpus(paths);
  std::string bytes(static_cast<size_t>(std::min(corpus.size(), count * kBytesPerToken)), '\0');
  corpus.read(0, std::ssize(bytes), reinterpret_cast<uint8_t*>(bytes.data()));
  std::vector<int64_t> ids = tokenizer.encode(bytes);
  TORCH_CHECK_VALUE(std::ssize(ids) >= count,
                    "doctor: --text must have two sequences of --seq-len tokens and one more token, ", count,
                    "; got ", ids.size(), " [SW0051]");
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

/// Returns two consecutive sequences as columns, and the labels: each token's successor.
doctor::Tokens columns(const std::vector<int64_t>& ids, int64_t length) {
  const auto from = [&](int64_t begin) {
    const at::Tensor rows = at::empty({kSequences, length}, at::kLong);
    std::copy_n(ids.begin() + begin, rows.numel(), rows.mutable_data_ptr<int64_t>());
    return rows.t().contiguous();
  };
  return {from(0), from(1)};
}

doctor::Tokens tokens_of(const DoctorOptions& o, const ModelSource& model) {
  const int64_t length = length_of(o, model.config()), count = kSequences * length + 1;
  if (o.text.empty()) return columns(draw_ids(o.seed, model.config().vocab_size, count), length);
  const std::vector<int64_t> ids = read_ids(o.text, *model.tokenizer(), count);
  infer::check_token_ids(ids, model.config(), "doctor: the text's");
  return columns(ids, length);
}

void check(const DoctorOptions& o, const ModelSource& model) {
  TORCH_CHECK_VALUE(o.model.tp >= 2, "doctor: --tp must be at least 2; got ", o.model.tp, " [SW0048]");
  TORCH_CHECK_VALUE(!model.maps_panels(),
                    "doctor: --model must have weights that can be trained; got the panel files in ",
                    model.directory().string(), " [SW0743]");
  TORCH_CHECK_VALUE(!model.config().quantization,
                    "doctor: the weights must not be quantized, because doctor runs backward; got ",
                    model.config().quantization->text(), " [SW0047]");
  TORCH_CHECK_VALUE(!o.model.tokenizer || !o.text.empty(), "doctor: --tokenizer needs --text; got ",
                    o.model.tokenizer.value_or(""), " alone [SW0050]");
}

/// The result refers to `o` and `model`, which must outlive it.
doctor::Target target_of(const DoctorOptions& o, const ModelSource& model) {
  return {model.config(), model.dtype(), [&](model::DecoderWeights& weights) {
            model.load(weights, o.seed, weights.group());
            if (o.model.load_format == "dummy") doctor::randomize_1d_parameters_(weights, o.seed);
          }};
}

/// Prints the lines, in color on a terminal.
void show(const std::vector<ReportLine>& lines) {
  base::Console out(STDOUT_FILENO);
  for (const auto& [text, color] : lines) out.is_terminal() ? out.line(text, color) : print(text + "\n");
}

}  // namespace

int doctor_command(const Call& call) {
  DoctorOptions o;
  RankOptions ranks;
  Flags flags("doctor", kAbout);
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  add_device_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("doctor", ranks);
  const ModelSource model("doctor", o.model);
  check(o, model);
  const doctor::Tokens tokens = tokens_of(o, model);
  const doctor::Target target = target_of(o, model);
  const launch::LaunchContext context = launch_context_for(o.model.tp);
  // The CPU has the reference, so all that has it too runs there.
  const std::string device = std::exchange(ranks.device, "cpu");
  const JobDirectory directory(context);
  base::Console& console = base::Console::standard_error();
  int checks_exit_code = 0;
  const int ended = run_on_parts(
      {context, o.model.tp, ranks, call.argv},
      [&](const comm::Group& group, const comm::Mesh::Connect& connect) {
        if (group.rank() == 0) model.warn("doctor");
        doctor::RunOptions options{tokens, o.seed, directory.path(group), connect};
        const comm::Group on_device = device::connect(device, group);
        if (!on_device.device().is_cpu()) {
          options.device = on_device;
          options.device_name = device == "auto" ? "cuda" : device;
        }
        options.on_part = [&](const std::string& part) { console.set_progress_line("doctor: " + part); };
        const doctor::Report report = doctor::run_doctor(target, options, group);
        if (group.rank() == 0) {
          console.set_progress_line("");
          const DoctorReport printed{model.directory().string(), o.model.tp, model.dtype_name(),
                                     tokens.ids.size(0), report};
          o.json ? print(to_json(printed)) : show(to_lines(printed));
        }
        checks_exit_code = report.passed ? 0 : launch::kCheckFailedExitCode;
      });
  return ended != 0 ? ended : checks_exit_code;
}

}  // namespace shardwise::cli
