#include "shardwise/train/options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/base/error.h"
#include "shardwise/nn/split_batch.h"
#include "shardwise/train/overlap_choice.h"

namespace shardwise::train {
namespace {

void at_least(const char* flag, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, "train: ", flag, " must be at least ", least, "; got ", value,
                    " [SW0017]");
}

void in_unit_interval(const char* flag, double value) {  // excluding 1
  TORCH_CHECK_VALUE(value >= 0 && value < 1, "train: ", flag, " must be in [0, 1); got ", value, " [SW0018]");
}

void not_negative(const char* flag, double value) {
  TORCH_CHECK_VALUE(value >= 0 && std::isfinite(value), "train: ", flag, " must be 0 or more; got ", value,
                    " [SW0019]");
}

void positive(const char* flag, double value) {
  TORCH_CHECK_VALUE(value > 0 && std::isfinite(value), "train: ", flag, " must be above 0; got ", value,
                    " [SW0020]");
}

void check_model(const TrainOptions& o) {
  TORCH_CHECK_VALUE(!o.preset || !o.model_config,
                    "train: --preset and --model-config are mutually exclusive; got ", *o.preset, " and ",
                    *o.model_config, " [SW0021]");
  TORCH_CHECK_VALUE(!o.resume || !o.init,
                    "train: --resume and --init are mutually exclusive; got both [SW0024]");
  TORCH_CHECK_VALUE(!o.dtype || *o.dtype == "fp32" || *o.dtype == "bf16" || *o.dtype == "fp64",
                    "train: --dtype must be fp32, bf16 or fp64; got ", base::shortened(*o.dtype),
                    " [SW0025]");
  in_unit_interval("--dropout", o.dropout);
  in_unit_interval("--attention-dropout", o.attention_dropout);
  in_unit_interval("--label-smoothing", o.label_smoothing);
  not_negative("--z-loss", o.z_loss);
}

void check_split_batch(const TrainOptions& o) {
  TORCH_CHECK_VALUE(o.tp >= 2, "train: --split-batch needs 2 ranks or more; got --tp ", o.tp,
                    ", which has no all_reduce to overlap; leave it out [SW0522]");
  nn::Step step(comm::Group(), o.seq_len);
  step.dropout = o.dropout;
  step.attention_dropout = o.attention_dropout;
  step.recompute = recompute_of(o.recompute);
  const std::string broken = nn::broken_split_batch_rule(step, o.batch_size, o.sequence_parallel);
  TORCH_CHECK_VALUE(broken.empty(), "train: --split-batch ", broken, " [SW0027]");
}

// Far more than any run has, and few enough that counters of tokens and bytes do not overflow.
constexpr int64_t kMaxTokensPerStep = int64_t{1} << 40;

void check_tokens_per_step(const TrainOptions& o) {
  const bool fits = o.seq_len <= kMaxTokensPerStep && o.batch_size <= kMaxTokensPerStep / o.seq_len &&
                    o.grad_accum <= kMaxTokensPerStep / o.seq_len / o.batch_size;
  TORCH_CHECK_VALUE(fits, "train: --seq-len x --batch-size x --grad-accum must be at most ",
                    kMaxTokensPerStep, " tokens; got ", o.seq_len, " x ", o.batch_size, " x ", o.grad_accum,
                    " [SW0700]");
}

void check_stages(const TrainOptions& o) {
  at_least("--pp", o.pp, 1);
  at_least("--virtual-stages", o.virtual_stages, 1);
  TORCH_CHECK_VALUE(o.virtual_stages == 1 || o.pp > 1,
                    "train: --virtual-stages above 1 needs --pp 2 or more; got ", o.virtual_stages,
                    " [SW0878]");
  TORCH_CHECK_VALUE(o.pp_schedule == "1f1b" || o.pp_schedule == "afab",
                    "train: --pp-schedule must be 1f1b or afab; got ", base::shortened(o.pp_schedule),
                    " [SW0877]");
}

void check_steps(const TrainOptions& o) {
  at_least("--tp", o.tp, 1);
  check_stages(o);
  at_least("--dp", o.dp, 1);  // before --grad-accum, whose default it is
  TORCH_CHECK_VALUE(0 <= o.zero && o.zero <= 3, "train: --zero must be 0, 1, 2 or 3; got ", o.zero,
                    " [SW0868]");
  TORCH_CHECK_VALUE(
      o.zero < 2 || o.dp == 1 || (!o.split_batch && o.pp == 1),
      "train: --zero 2 and 3 sum the gradients of a block when its backward is done, and need one that runs "
      "alone; got ",
      o.split_batch ? "--split-batch" : "--pp ", o.split_batch ? "" : std::to_string(o.pp),
      " too, which runs several micro-batches at once [SW0872]");
  TORCH_CHECK_VALUE(o.shared_weights == "auto" || o.shared_weights == "off",
                    "train: --shared-weights must be auto or off; got ", base::shortened(o.shared_weights),
                    " [SW0869]");
  at_least("--seq-len", o.seq_len, 1);
  at_least("--batch-size", o.batch_size, 1);
  at_least("--grad-accum", o.grad_accum, 1);
  check_tokens_per_step(o);
  at_least("--steps", o.steps, 1);
  recompute_of(o.recompute);
  const OverlapChoice checked(o.overlap);  // throws for another word
  if (o.split_batch) check_split_batch(o);
  if (!o.stop_after) return;
  at_least("--stop-after", *o.stop_after, 1);
  TORCH_CHECK_VALUE(*o.stop_after <= o.steps, "train: --stop-after must be at most --steps; got ",
                    *o.stop_after, " and ", o.steps, " [SW0036]");
}

/// Returns the hint for two flags that contradict each other, of which the user may have given one.
const char* of_resumed(const TrainOptions& o) {
  return o.resume ? "; a flag that is not given has the resumed run's value" : "";
}

void check_optimizer(const TrainOptions& o) {
  positive("--lr", o.lr);
  not_negative("--min-lr", o.final_lr());
  TORCH_CHECK_VALUE(o.final_lr() <= o.lr, "train: --min-lr must be at most --lr; got ", o.final_lr(), " and ",
                    o.lr, of_resumed(o), " [SW0037]");
  at_least("--warmup", o.warmup_steps(), 0);
  TORCH_CHECK_VALUE(o.warmup_steps() <= o.steps, "train: --warmup must be at most --steps; got ",
                    o.warmup_steps(), " and ", o.steps, of_resumed(o), " [SW0038]");
  not_negative("--weight-decay", o.weight_decay);
  in_unit_interval("--beta1", o.beta1);
  in_unit_interval("--beta2", o.beta2);
  positive("--eps", o.eps);
  not_negative("--clip-grad", o.clip_grad);
}

void check_results(const TrainOptions& o) {
  in_unit_interval("--val-fraction", o.val_fraction);
  at_least("--eval-every", o.eval_every, 0);
  at_least("--eval-batches", o.eval_batches, 1);
  TORCH_CHECK_VALUE(o.eval_every == 0 || o.val_fraction > 0,
                    "train: --eval-every needs validation text; got ", o.eval_every,
                    "; give --val-fraction [SW0039]");
  at_least("--save-every", o.save_every, 0);
  at_least("--keep", o.keep.value_or(0), 0);
  TORCH_CHECK_VALUE(o.save || (o.save_every == 0 && !o.keep),
                    "train: --save-every and --keep need --save; got none [SW0040]");
}

}  // namespace

int64_t TrainOptions::warmup_steps() const {
  return warmup.value_or(std::min<int64_t>(100, steps / 10));
}

int64_t TrainOptions::ranks() const {
  int64_t product = 0;
  const bool overflows =
      __builtin_mul_overflow(tp, dp, &product) || __builtin_mul_overflow(product, pp, &product);
  return overflows ? std::numeric_limits<int64_t>::max() : product;
}

base::Recompute recompute_of(const std::string& mode) {
  TORCH_CHECK_VALUE(mode == "none" || mode == "selective" || mode == "full",
                    "train: --recompute must be none, selective or full; got ", base::shortened(mode),
                    " [SW0032]");
  return mode == "none"   ? base::Recompute::none
         : mode == "full" ? base::Recompute::full
                          : base::Recompute::selective;
}

void validate(const TrainOptions& options) {
  TORCH_CHECK_VALUE(options.text.empty() == options.tokens.has_value(),
                    "train: exactly one of --text (files or directories) and --tokens (a file of token ids) "
                    "is required; got ",
                    options.tokens ? "both" : "neither", " [SW0041]");
  check_model(options);
  check_steps(options);
  check_optimizer(options);
  check_results(options);
}

}  // namespace shardwise::train
