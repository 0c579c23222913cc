#include "shardwise/doctor/smoke_test_options.h"

#include <random>

#include "shardwise/base/files.h"
#include "shardwise/doctor/small_model.h"

namespace shardwise::doctor {

namespace {

constexpr const char *kText = "text", *kConfig = "config.json";
constexpr size_t kTextBytes = 4096;
constexpr int64_t kScheduledSteps = 8;  // of the learning rate; the smoke test runs fewer

/// Returns random bytes, so that any wrong window or shift changes the loss.
std::string random_text(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(kTextBytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random() & 0xff);
  return text;
}

}  // namespace

void write_inputs(const TrainingSmokeTest& smoke_test) {
  base::write_text(smoke_test.directory / kText, random_text(smoke_test.seed));
  base::write_text(smoke_test.directory / kConfig, model::to_json(shrink(smoke_test.config)));
}

train::Options smoke_test_options(const TrainingSmokeTest& smoke_test, plan::Parallelism parallelism,
                                  int tp) {
  train::Options options;
  options.text = {(smoke_test.directory / kText).string()};
  options.model_config = (smoke_test.directory / kConfig).string();
  options.dtype = smoke_test.dtype == at::kBFloat16 ? "bf16" : "fp32";
  options.seq_len = kSmallSeqLen;
  options.batch_size = 2;
  options.grad_accum = 2;
  options.steps = kScheduledSteps;
  options.warmup = kScheduledSteps;
  options.seed = smoke_test.seed;
  options.lr = 0.1;         // one step changes bf16 weights too
  options.clip_grad = 0.1;  // below every gradient norm of this run
  options.tp = tp;
  options.sequence_parallel = parallelism == plan::Parallelism::tp_sp;
  return options;
}

train::Options resume_options(train::Options options, const std::filesystem::path& checkpoint, int tp) {
  options.model_config.reset();
  options.resume = checkpoint.string();
  options.tp = tp;
  return options;
}

}  // namespace shardwise::doctor
