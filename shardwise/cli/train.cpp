// `shardwise train`: converts flags to train::TrainOptions, runs the ranks, and prints rank 0's progress and
// summary.
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/checkpoint/tied_head.h"
#include "shardwise/cli/auto_training.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/model_source.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile_report.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/run_figures.h"
#include "shardwise/cli/stages_table.h"
#include "shardwise/cli/train_log.h"
#include "shardwise/cli/train_progress.h"
#include "shardwise/cli/train_report.h"
#include "shardwise/cli/train_workload.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/train/loop.h"

namespace shardwise::cli {

using train::TrainOptions;

namespace {

void add_text_flags(Flags& flags, TrainOptions& o) {
  flags.group("Text");
  flags.values("--text PATH", o.text,
               "files or directories to train on; in directories, hidden entries and symlinked directories "
               "are skipped");
  flags.value("--tokens FILE", o.tokens,
              "token ids to train on instead, written by shardwise tokenize --out");
  add_tokenizer_flag(flags, o.tokenizer,
                     "; saved with the checkpoints [that of --resume or --init, else bytes]");
  flags.value("--val-fraction X", o.val_fraction,
              "fraction of the text, at its end, held out for validation [0]");
  flags.value("--eval-every N", o.eval_every, "steps between evaluations [0: after the last step only]");
  flags.value("--eval-batches N", o.eval_batches, "micro-batches per evaluation, at most [8]");
}

void add_model_flags(Flags& flags, TrainOptions& o) {
  flags.group("Model");
  flags.alternatives({"preset", "model-config"});
  flags.alternatives({"resume", "init"});
  flags.value("--preset NAME", o.preset, fmt::format("{} [tiny]", fmt::join(config::preset_names(), ", ")));
  flags.value("--model-config FILE", o.model_config,
              "Hugging Face config.json of a Llama, Mistral, Qwen2, Qwen3, Phi-3 or GPT-2");
  flags.value("--init DIR", o.init, "start at step 0 from the weights of this Hugging Face directory");
  flags.value("--dtype NAME", o.dtype,
              "fp32; bf16 with fp32 master weights and gradients; or fp64, in which runs on "
              "different ranks compare to 1e-10 [fp32]");
  flags.values(
      "--freeze GLOB", o.freeze,
      "do not train tensors whose Hugging Face names match, such as 'model.layers.0.*': no gradient, "
      "no optimizer state");
  flags.value("--dropout X", o.dropout, "dropout probability of residual branches and embedding [0]");
  flags.value("--attention-dropout X", o.attention_dropout, "dropout probability of attention weights [0]");
  flags.value("--label-smoothing X", o.label_smoothing,
              "target probability that is spread evenly over the vocabulary [0]");
  flags.value("--z-loss X", o.z_loss, "coefficient of the squared log-sum-exp in the loss [0]");
}

void add_step_flags(Flags& flags, TrainOptions& o) {
  flags.group("Steps");
  flags.value("--seq-len N", o.seq_len, "tokens per sequence [256]");
  flags.value(
      "--batch-size N", o.batch_size,
      "sequences per micro-batch; a step has --batch-size x --grad-accum, whatever --dp and --pp [8]");
  flags.value("--grad-accum N", o.grad_accum,
              "micro-batches per step, over all replicas; with --pp several times --dp x --pp, or stages are "
              "idle [--dp, so --dp 2 doubles the step]");
  flags.value("--steps N", o.steps, "steps of the learning-rate schedule [200]");
  flags.value("--stop-after N", o.stop_after, "stop after this step, with the same schedule [--steps]");
  flags.value("--seed N", o.seed, "seed of initial weights, text windows and dropout [0]");
}

void add_optimizer_flags(Flags& flags, TrainOptions& o) {
  flags.group("AdamW");
  flags.value("--lr X", o.lr, "learning rate after the warm-up [0.001]");
  flags.value("--min-lr X", o.min_lr,
              "learning rate at step --steps, the end of the cosine decay [--lr / 10]");
  flags.value("--warmup N", o.warmup, "steps of linear warm-up [a tenth of --steps, at most 100]");
  flags.value("--weight-decay X", o.weight_decay,
              "decoupled weight decay of parameters with at least two dims [0.1]");
  flags.value("--beta1 X", o.beta1, "decay rate of the first moment [0.9]");
  flags.value("--beta2 X", o.beta2, "decay rate of the second moment [0.95]");
  flags.value("--eps X", o.eps, "added to the square root of the second moment [1e-8]");
  flags.value("--clip-grad X", o.clip_grad,
              "maximum 2-norm of the gradient of all parameters; 0: no clipping [1]");
}

void add_rank_flags(Flags& flags, TrainOptions& o, std::optional<int64_t>& dp,
                    std::optional<std::string>& pp_layers, RankOptions& ranks) {
  flags.group("Ranks");
  add_tp_flag(flags, o.tp);
  flags.value(
      "--pp,--pipeline-model-parallel-size N", o.pp,
      "pipeline stages, each of an equal share of the layers; micro-batches go through them one behind "
      "the other [1]");
  flags.value("--virtual-stages,--num-virtual-stages-per-pipeline-rank N", o.virtual_stages,
              "parts of the model that each stage has, in turn with the other stages (interleaved 1F1B): the "
              "idle time of stages shrinks to 1/N, and they send N times as many messages [1]");
  flags.value("--pp-layers N,...", pp_layers,
              "the number of layers of each part of the model [as even as possible]");
  flags.value(
      "--pp-schedule NAME", o.pp_schedule,
      "the order of a stage's forwards and backwards: 1f1b: in turn, which saves the activations of at most "
      "--pp micro-batches, with --virtual-stages of more; afab: all forwards first, which saves those of "
      "all; same results [1f1b]");
  flags.value(
      "--dp,--data-parallel-size N", dp,
      "replicas of the model, each on --tp x --pp ranks, which share the micro-batches of a step [1; under "
      "torchrun, mpirun or srun, their ranks / --tp / --pp]");
  flags.value(
      "--zero N", o.zero,
      "what replicas split: 0: nothing; 1: optimizer states and updates, each replica those of the rows "
      "that it owns (ZeRO-1), same results; 2: gradients too, summed block by block in each "
      "micro-batch (ZeRO-2), same results up to rounding; 3: weights too: each replica keeps those of its "
      "rows and gathers a block's before it computes with them (ZeRO-3), for models whose weights no host "
      "can hold; 2 and 3 with --dp above 1 need --pp 1 and no --split-batch [1]");
  flags.value(
      "--shared-weights MODE", o.shared_weights,
      "auto: with --zero 1 and 2, replicas on one host share one copy of the weights; on more hosts each has "
      "one, if all have equally many replicas, at least two. off: every replica has a copy. Same results "
      "[auto]");
  flags.on_off("--sequence-parallel,!--no-sequence-parallel", o.sequence_parallel,
               "shard activations between the layers along the sequence [on]");
  flags.value(
      "--overlap MODE", o.overlap,
      "overlap collectives with GEMMs: on, off, or auto: the faster in the first steps; same results; over "
      "MPI nothing overlaps [auto]");
  flags.on_off(
      "--split-batch", o.split_batch,
      "split each micro-batch in two and overlap one half's all_reduce with the other half's compute "
      "(Domino, arXiv 2409.15241); refused in shared memory and over MPI, where it hides nothing; needs "
      "--no-sequence-parallel, no dropout, and --recompute none or selective [off]");
  flags.value(
      "--recompute MODE", o.recompute,
      "activation recomputation in backward: none; selective: the MLP's activation; full: every block "
      "[none]");
  flags.on_off("--verify", o.verify,
               "compare over the ranks what must be equal: tokens, random keys and losses; the inputs of "
               "parallel layers and their gradients, under sequence parallelism once gathered; and in every "
               "step replicated parameters and their gradients; slow");
  add_timeout_flag(flags, ranks);
  add_device_flag(flags, ranks);
}

void add_result_flags(Flags& flags, TrainOptions& o, bool& json) {
  flags.group("Results");
  flags.value("--save DIR", o.save, "directory for checkpoints, as DIR/step-N, and DIR/latest");
  flags.value("--save-every N", o.save_every, "steps between checkpoints [0: after the last step only]");
  flags.value("--keep N", o.keep, "number of newest checkpoints to keep; 0: all [3]");
  flags.value(
      "--resume DIR", o.resume,
      "resume from DIR/latest or DIR/step-N, at any --tp, --pp, --dp and --zero, with the flags of the saved "
      "run under Model, Steps (but --stop-after) and AdamW and its --val-fraction; a seed, --seq-len, weight "
      "decay, beta, eps or clipping that differs is refused, another difference is logged; losses are those "
      "of an uninterrupted run if the text is the same and nothing differs");
  flags.value("--log FILE", o.log,
              "write one JSON line per step, after one with the planned memory; append when resuming");
  flags.value("--report FILE", o.report,
              "write all measurements of the run as JSON, the input of shardwise report");
  flags.value("--profile FILE", o.profile,
              "time steps 3 to 5 by op, layer and rank; print tables, and write a Chrome trace");
  flags.on_off("--json", json, "print a JSON summary to standard output at the end");
}

/// Rank 0's output while it trains: the progress line and the log file. It also collects the report's
/// records.
class Display {
 public:
  Display(const train::Job& job, PlannedMemories planned, StepTimes times)
      : progress_(job.first_step(), job.options().last_step()),
        planned_(std::move(planned)),
        times_(std::move(times)),
        reports_(job.options().report) {
    if (!job.options().log) return;
    path_ = *job.options().log;
    if (job.resumed()) resumed_after_ = job.first_step();
    log_.open(path_, std::ios::app);
    check();
  }

  /// Writes the planned memory to the log, before the first step. Empties an older log here and not before,
  /// because a run that is refused changes no file.
  void start() {
    if (path_.empty()) return;
    if (resumed_after_) {
      drop_repeated_();
    } else {
      reopen_(std::ios::trunc);
    }
    if (!planned_.empty())
      log_ << nlohmann::ordered_json{{"expected_memory", to_json(planned_)}} << '\n' << std::flush;
    check();
  }

  void show(const train::StepRecord& record) {
    progress_.update(record.step, record.loss, record.tokens_per_s);
    times_.seconds.push_back(record.step_ms / 1e3);
    if (reports_) records_.push_back(record);
    if (path_.empty()) return;
    log_ << train::to_json(record) << '\n'
         << std::flush;  // the file has complete lines only, even after a crash
    check();
  }

  /// Returns the records of all steps; empty without --report.
  const std::vector<train::StepRecord>& records() const { return records_; }
  /// Returns the planned and measured times of the steps.
  const StepTimes& times() const { return times_; }

 private:
  void check() const { TORCH_CHECK(log_.good(), "train: --log ", path_, " cannot be written [SW0381]"); }
  void reopen_(std::ios::openmode mode) {
    log_.close();
    log_.open(path_, mode);
  }
  void drop_repeated_() {
    const int64_t dropped = drop_steps_after(path_, *resumed_after_);
    reopen_(std::ios::app);  // the file may be a new one
    if (dropped == 0) return;
    base::log_info(fmt::format("train: --log {}: removed {} steps after step {}, which this run repeats",
                               path_, dropped, *resumed_after_));
  }

  TrainProgress progress_;
  PlannedMemories planned_;
  StepTimes times_;
  std::string path_;
  std::ofstream log_;
  std::optional<int64_t> resumed_after_;  // the step
  bool reports_;
  std::vector<train::StepRecord> records_;
};

/// Returns the run's report, and with --report the records of its steps.
std::pair<TrainReport, std::vector<train::StepRecord>> train_and_show(const train::Job& job,
                                                                      const comm::Mesh& mesh) {
  const PlannedMemories planned = planned_memory(planned_peaks(job, mesh));
  const StepTimes times = planned_steps(job, train::world_of(mesh));
  base::log_info(planned_memory_line(planned) + planned_text(times));
  Display display(job, planned, times);
  train::Summary summary = with_plan_in_error("train", planned, [&] {
    return train::run(
        job, mesh, [&](const train::StepRecord& record) { display.show(record); }, [&] { display.start(); });
  });
  TrainReport report = make_report(job, std::move(summary), display.times(), mesh);
  return {std::move(report), display.records()};
}

void warn_of_start(const train::Job& job) {
  const auto& directory = job.starting_checkpoint();
  if (!directory) return;
  const auto& given = job.resumed() ? job.options().resume : job.options().init;
  checkpoint::warn_of_missing_latest(*given, *directory, "train");
  checkpoint::warn_of_unused_head(*directory, "train");
}

void log_resumption(const train::Job& job) {
  const train::ResumedOptions& resumption = job.resumption();
  if (resumption.lacks_settings) {
    base::log_warning(fmt::format(
        "train: {} should have a training.json; an older version saved it, so its --seed and --seq-len are "
        "taken over, and all else is as the flags of this command say [SW0586]",
        job.resumed()->string()));
  }
  if (!resumption.changes.empty())
    base::log_info("train: changes settings of the resumed run: " + resumption.changes);
}

void warn_of_idle_ranks(const TrainOptions& o) {
  if (o.grad_accum < o.dp) {
    base::log_warning(
        fmt::format("train: --grad-accum should be at least --dp, or replicas have no micro-batch; got {} "
                    "and {} [SW0864]",
                    int64_t(o.grad_accum), o.dp));
  } else if (o.pp > 1 && o.grad_accum < o.dp * o.pp) {
    base::log_warning(fmt::format(
        "train: --grad-accum should be at least --dp x --pp, or a stage is idle most of the time; got {} "
        "and {} x {} [SW0874]",
        int64_t(o.grad_accum), o.dp, o.pp));
  }
}

/// Warns if tensor-parallel ranks, which send in every block, are on several nodes although other axes could
/// cross them. Collective.
void warn_of_tp_between_nodes(const TrainOptions& o, const comm::Mesh& mesh) {
  const comm::Group& tp = mesh.group(train::kTensorAxis);
  const int spans = tp.size() > 1 && tp.device().is_cpu() && !tp.has_symmetric_heap();
  const std::vector<int> all = comm::gather_values(spans, train::world_of(mesh));
  if (mesh.rank() > 0 || o.tp == o.ranks() || std::ranges::count(all, 1) == 0) return;
  base::log_warning(
      fmt::format("train: --tp should divide the ranks of a node, or blocks send between nodes; got --tp {}, "
                  "of which {} of {} ranks are in groups on several nodes [SW0881]",
                  o.tp, std::ranges::count(all, 1), all.size()));
}

void train_rank(const train::Job& job, const comm::Mesh& mesh, bool json) {
  const comm::Group& group = train::world_of(mesh);
  warn_of_tp_between_nodes(job.options(), mesh);
  if (mesh.rank() > 0) {
    const train::Summary summary = with_plan_in_error("train", planned_memory(planned_peaks(job, mesh)), [&] {
      return train::run(job, mesh, [](const train::StepRecord&) {});
    });
    if (job.options().profile) report_profile("train", *job.options().profile, summary.profile, group);
    return;
  }
  config::warn_of_unknown_tokens(job.config(), "train");
  warn_of_start(job);
  job.text().invalid_utf8().warn("train");
  log_resumption(job);
  base::log_info(describe(job));
  if (job.options().pp > 1)
    base::log_info(stages_table("train", train::stages_of(job.options()), job.config().num_hidden_layers,
                                job.options().dp * job.options().tp));
  if (job.options().dp > 1) base::log_info(replicas_table(job, mesh));
  warn_of_idle_ranks(job.options());
  const auto [report, steps] = train_and_show(job, mesh);
  base::log_info(to_text(report));
  if (job.options().profile) report_profile("train", *job.options().profile, report.summary.profile, group);
  if (json) print(to_json(report));
  const auto& file = job.options().report;  // last: a failed write hides none of the output above
  if (file) base::write_text(*file, figures_json(job, steps, report));
}

}  // namespace

int train_command(const Call& call) {
  TrainOptions options;
  RankOptions ranks;
  AutoOptions automatic;
  std::optional<int64_t> dp;
  std::optional<std::string> pp_layers;
  bool json = false;
  Flags flags(
      "train",
      "Trains a decoder-only Transformer on text, with tensor, sequence, data and pipeline parallelism. Once "
      "shardwise bench machine --tp N --save has measured this host, runs of N ranks in all (--tp x --pp x "
      "--dp) begin with their planned time.");
  add_text_flags(flags, options);
  add_model_flags(flags, options);
  add_step_flags(flags, options);
  add_optimizer_flags(flags, options);
  add_rank_flags(flags, options, dp, pp_layers, ranks);
  add_auto_flags(
      flags, automatic,
      "--tp, --pp, --virtual-stages, --dp, --sequence-parallel, --recompute and, unless --grad-accum is "
      "given, the micro-batches of a step's --batch-size x --grad-accum sequences");
  add_result_flags(flags, options, json);
  if (!flags.parse(call.arguments)) return 0;
  validate("train", ranks);
  if (pp_layers) options.pp_layers = pp_layers_of("train", *pp_layers);
  std::vector<std::string> argv = call.argv;
  if (has_to_choose("train", automatic, ranks.device)) {
    options.dp = dp.value_or(1);
    std::ranges::copy(choose_(options, flags, automatic), std::back_inserter(argv));
  } else {
    options.dp = dp.value_or(replicas_left(options.tp * options.pp));
  }
  const launch::LaunchContext context = launch_context_for(options.ranks());
  const train::Job job(options);  // before any rank starts; last, because it creates the --save directory
  return run_on_mesh(
      {context, options.ranks(), ranks, argv},
      [&](const comm::Mesh::Connect& connect) {
        return train::connect_mesh(options, context.rank, context.world_size, connect);
      },
      [&](const comm::Mesh& mesh) { train_rank(job, mesh, json); });
}

}  // namespace shardwise::cli
