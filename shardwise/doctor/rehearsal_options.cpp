#include "shardwise/doctor/rehearsal_options.h"

#include <random>

#include "shardwise/base/files.h"
#include "shardwise/doctor/small_model.h"

namespace shardwise::doctor {

namespace {

constexpr const char *kText = "text", *kConfig = "config.json";
constexpr size_t kTextBytes = 4096;
constexpr int64_t kHorizon = 8;  // of which a few steps are done

/// No stretch of it is like another, nor its tokens like those one on.
std::string drawn_text(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(kTextBytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random() & 0xff);
  return text;
}

}  // namespace

void put_input(const Rehearsal& rehearsal) {
  base::write_text(rehearsal.directory / kText, drawn_text(rehearsal.seed));
  base::write_text(rehearsal.directory / kConfig, model::to_json(in_small(rehearsal.config)));
}

train::Options options_of(const Rehearsal& rehearsal, plan::Stream stream, int tp) {
  train::Options options;
  options.text = {(rehearsal.directory / kText).string()};
  options.model_config = (rehearsal.directory / kConfig).string();
  options.dtype = rehearsal.dtype == at::kBFloat16 ? "bf16" : "fp32";
  options.seq_len = kSmallLength;
  options.batch_size = 2;
  options.grad_accum = 2;
  options.steps = kHorizon;
  options.warmup = kHorizon;
  options.seed = rehearsal.seed;
  options.lr = 0.1;         // of which a step shows in bf16 too
  options.clip_grad = 0.1;  // less than any gradient's norm here
  options.tp = tp;
  options.sequence_parallel = stream == plan::Stream::tp_sp;
  return options;
}

train::Options resumed(train::Options options, const std::filesystem::path& checkpoint, int tp) {
  options.model_config.reset();
  options.resume = checkpoint.string();
  options.tp = tp;
  return options;
}

}  // namespace shardwise::doctor
