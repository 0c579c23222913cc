// `shardwise train`: flags to train::Options, ranks, and what rank 0 shows of them.
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/base/progress.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/report.h"
#include "shardwise/cli/run_figures.h"
#include "shardwise/train/loop.h"

namespace shardwise::cli {

using train::Options;

namespace {

void add_text_flags(Flags& flags, Options& o) {
  flags.group("Text");
  flags.values(
      "--text PATH", o.text,
      "files or directories to train on, any bytes; hidden entries and linked directories inside a directory "
      "are left out");
  flags.value("--tokens FILE", o.tokens, "ids to train on instead, as shardwise tokenize --out writes them");
  flags.value("--tokenizer NAME", o.tokenizer,
              "bytes, a tokenizer.json or tokenizer.model, or a directory that holds one; saved with the "
              "checkpoints [that of --resume or --init; where there is none, bytes]");
  flags.value("--val-fraction X", o.val_fraction, "share of the text, its tail, kept for validation [0]");
  flags.value("--eval-every N", o.eval_every, "steps between evaluations [0: after the last step only]");
  flags.value("--eval-batches N", o.eval_batches, "micro-batches of an evaluation at most [8]");
}

void add_model_flags(Flags& flags, Options& o) {
  flags.group("Model");
  flags.alternatives({"preset", "model-config"});
  flags.alternatives({"resume", "init"});
  flags.value("--preset NAME", o.preset, fmt::format("{} [tiny]", fmt::join(model::preset_names(), ", ")));
  flags.value("--model-config FILE", o.model_config,
              "config.json of a Llama, Mistral, Qwen2, Qwen3, Phi-3 or GPT-2, as Hugging Face writes it");
  flags.value("--init DIR", o.init, "begin with the weights of this Hugging Face directory, at step 0");
  flags.value("--dtype NAME", o.dtype, "fp32, or bf16 with fp32 master weights and gradients [fp32]");
  flags.values(
      "--freeze GLOB", o.freeze,
      "leave tensors of these Hugging Face names as they are, such as 'model.layers.0.*'; no gradient, "
      "no optimizer state");
  flags.value("--dropout X", o.dropout, "probability on residuals and embedding [0]");
  flags.value("--attention-dropout X", o.attention_dropout, "probability on attention's weights [0]");
  flags.value("--label-smoothing X", o.label_smoothing,
              "share of the target that all tokens of the vocabulary share [0]");
  flags.value("--z-loss X", o.z_loss, "coefficient of the squared log-sum-exp, added to the loss [0]");
}

void add_step_flags(Flags& flags, Options& o) {
  flags.group("Steps");
  flags.value("--seq-len N", o.seq_len, "tokens of a sequence [256]");
  flags.value("--batch-size N", o.batch_size, "sequences of a micro-batch [8]");
  flags.value("--grad-accum N", o.grad_accum, "micro-batches of a step [1]");
  flags.value("--steps N", o.steps, "steps of the whole schedule [200]");
  flags.value("--stop-after N", o.stop_after, "end once this step is done; the schedule stays [--steps]");
  flags.value("--seed N", o.seed, "of weights, windows and dropout [0]");
}

void add_optimizer_flags(Flags& flags, Options& o) {
  flags.group("AdamW");
  flags.value("--lr X", o.lr, "learning rate after the warm-up [0.001]");
  flags.value("--min-lr X", o.min_lr, "where the cosine ends, at step --steps [--lr / 10]");
  flags.value("--warmup N", o.warmup, "steps of linear warm-up [a tenth of --steps, at most 100]");
  flags.value("--weight-decay X", o.weight_decay, "decoupled; of parameters with two dims or more [0.1]");
  flags.value("--beta1 X", o.beta1, "decay of the gradient's mean [0.9]");
  flags.value("--beta2 X", o.beta2, "decay of its square's mean [0.95]");
  flags.value("--eps X", o.eps, "added to the square's root [1e-8]");
  flags.value("--clip-grad X", o.clip_grad, "largest 2-norm of the whole gradient; 0: any [1]");
}

void add_rank_flags(Flags& flags, Options& o, RankOptions& ranks) {
  flags.group("Ranks");
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp,
              "tensor-parallel ranks, started by this program [1]");
  flags.on_off("--sequence-parallel,!--no-sequence-parallel", o.sequence_parallel,
               "cut activations between the layers along the sequence, or not [on]");
  flags.value("--overlap MODE", o.overlap,
              "on: collectives go on beside products; off; auto: as the first steps measure it; the numbers "
              "are the same [auto]");
  flags.on_off(
      "--domino", o.domino,
      "without sequence parallelism: the micro-batch in two halves, of which one computes while the "
      "other's sums are under way, by a backend that goes on by itself: not on one machine, and not over "
      "MPI; not with dropout or --recompute full");
  flags.value("--recompute MODE", o.recompute,
              "none; selective: the MLP's activation again in backward; full: every block again [none]");
  flags.on_off("--verify", o.verify, "at every crossing compare over the ranks what should be equal; slow");
  add_timeout_flag(flags, ranks);
}

void add_result_flags(Flags& flags, Options& o, bool& json) {
  flags.group("Results");
  flags.value("--save DIR", o.save, "directory for checkpoints, as DIR/step-N, and DIR/latest");
  flags.value("--save-every N", o.save_every, "steps between checkpoints [0: after the last step only]");
  flags.value("--keep N", o.keep, "newest checkpoints that stay; 0: all [3]");
  flags.value(
      "--resume DIR", o.resume,
      "continue from DIR/latest or DIR/step-N, at any --tp, with its --seed and --seq-len; as if never "
      "stopped with the same text, --batch-size, --grad-accum, --dropout and --attention-dropout");
  flags.value("--log FILE", o.log, "file for one JSON line per step; appended to when resuming");
  flags.value("--report FILE", o.report,
              "file for all figures of the run as one JSON document; tools/report makes a page of it");
  flags.on_off("--json", json, "one JSON summary on standard output at the end");
}

/// What rank 0 shows while it trains: the live line, and the log file; and what it remembers for the report.
class Display {
 public:
  explicit Display(const train::Job& job)
      : progress_(job.first_step(), job.options().last_step()), reports_(job.options().report) {
    if (!job.options().log) return;
    path_ = *job.options().log;
    is_to_be_emptied_ = !job.resumed();
    log_.open(path_, std::ios::app);
    check();
  }

  void show(const train::StepRecord& record) {
    progress_.update(record.step, record.loss, record.tokens_per_s);
    if (reports_) records_.push_back(record);
    if (path_.empty()) return;
    if (std::exchange(is_to_be_emptied_, false)) empty_();
    log_ << train::to_json(record) << '\n' << std::flush;  // whole lines only, whatever happens next
    check();
  }

  /// Every step's, in a run with --report.
  const std::vector<train::StepRecord>& records() const { return records_; }

 private:
  void check() const { TORCH_CHECK(log_.good(), "train: --log ", path_, " cannot be written"); }
  void empty_() {
    log_.close();
    log_.open(path_, std::ios::trunc);
  }

  base::Progress progress_;
  std::string path_;
  std::ofstream log_;
  bool is_to_be_emptied_ = false;  // of another run's lines, once there is one of this: it may yet be refused
  bool reports_;
  std::vector<train::StepRecord> records_;
};

/// What the run has come to, and its steps, if asked for.
std::pair<TrainReport, std::vector<train::StepRecord>> train_and_show(const train::Job& job,
                                                                      const comm::Group& group) {
  Display display(job);
  train::Summary summary =
      train::run(job, group, [&](const train::StepRecord& record) { display.show(record); });
  const bool shares_memory = group.size() == 1 || group.has_symmetric_heap();
  TrainReport report = make_report(job, std::move(summary), shares_memory);
  return {std::move(report), display.records()};
}

void train_rank(const train::Job& job, const comm::Group& group, bool json) {
  if (group.rank() > 0) {
    train::run(job, group, [](const train::StepRecord&) {});
    return;
  }
  base::log_info(describe(job));
  const auto [report, steps] = train_and_show(job, group);
  base::log_info(to_text(report));
  if (json) std::puts(to_json(report).c_str());
  const auto& file = job.options().report;  // last: failing hides nothing of the above
  if (file) base::write_text(*file, figures_json(job, steps, report) + "\n");
}

}  // namespace

int train_command(const Call& call) {
  Options options;
  RankOptions ranks;
  bool json = false;
  Flags flags("train",
              "Trains a decoder-only Transformer on text, over tensor- and sequence-parallel ranks.");
  add_text_flags(flags, options);
  add_model_flags(flags, options);
  add_step_flags(flags, options);
  add_optimizer_flags(flags, options);
  add_rank_flags(flags, options, ranks);
  add_result_flags(flags, options, json);
  if (!flags.parse(call.arguments)) return 0;
  validate("train", ranks);
  const comm::LaunchContext place = place_for(options.tp);
  const train::Job job(options);  // before any rank starts; last, as it makes the directory to save to
  return run_on_ranks({place, options.tp, ranks, call.argv},
                      [&](const comm::Group& group) { train_rank(job, group, json); });
}

}  // namespace shardwise::cli
