#include "shardwise/train/job.h"

#include <fcntl.h>
#include <unistd.h>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/companions.h"
#include "shardwise/checkpoint/directories.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/model/layout.h"

namespace shardwise::train {

using model::Config;
using std::filesystem::path;

namespace {

Options validated(const Options& options) {
  validate(options);
  return options;
}

std::optional<path> resolved(const std::optional<std::string>& directory) {
  if (!directory) return std::nullopt;
  return checkpoint::resolve(*directory);
}

std::string dtype_name(const std::string& flag) {
  return flag == "fp32" ? "float32" : "bfloat16";
}

std::optional<Config> asked_config(const Options& options) {
  if (options.model_config) return model::load_config(*options.model_config);
  if (options.preset) return model::preset(*options.preset);
  return std::nullopt;
}

void check_vocabulary(const Config& config, const text::TokenSource& tokens) {
  TORCH_CHECK_VALUE(config.vocab_size >= tokens.vocab_size(),
                    "train: the model's vocab_size must be at least the tokenizer's, ", tokens.vocab_size(),
                    "; got ", config.vocab_size);
}

/// Other ids than those of the steps before would be learned without a word.
void check_same_tokenizer(const Text& text, const path& resumed) {
  TORCH_CHECK_VALUE(text.tokenizer_files() == tokenizer_files_in(resumed),
                    "train: --tokenizer must be that of the resumed checkpoint; got another than ",
                    resumed.string(), " holds; --init takes the weights alone");
}

/// A checkpoint brings its config; one that is given beside it must be the same model.
void check_same_model(Config asked, const Config& stored, const path& directory) {
  asked.dtype = stored.dtype;
  TORCH_CHECK_VALUE(asked == stored,
                    "train: the model asked for must be that of the checkpoint; got another than ",
                    (directory / "config.json").string(), "; leave --preset and --model-config out");
}

std::string run_dtype(const Options& options, const std::optional<path>& resumed, const Config& stored) {
  if (!resumed) return dtype_name(options.dtype.value_or("fp32"));
  TORCH_CHECK_VALUE(!options.dtype || dtype_name(*options.dtype) == stored.dtype,
                    "train: --dtype must be that of the resumed checkpoint, ", stored.dtype, "; got ",
                    *options.dtype);
  return stored.dtype;
}

Config choose_config(const Options& options, const std::optional<path>& resumed,
                     const std::optional<path>& initial) {
  const std::optional<Config> asked = asked_config(options);
  const std::optional<path> directory = resumed ? resumed : initial;
  Config config = directory ? model::load_config(*directory) : asked.value_or(model::preset("tiny"));
  TORCH_CHECK_VALUE(!config.quantization, "train: quantized weights are run, not trained; got ",
                    config.quantization ? config.quantization->text() : "",
                    "; train those that they were made from");
  if (directory && asked) check_same_model(*asked, config, *directory);
  config.dtype = run_dtype(options, resumed, config);
  return config;
}

void check_length(const Options& options, const Config& config) {
  TORCH_CHECK_VALUE(options.seq_len <= config.max_position_embeddings,
                    "train: --seq-len must be at most max_position_embeddings, ",
                    config.max_position_embeddings, "; got ", options.seq_len);
}

/// Seed and sequence length say which windows were consumed: with others the run would go on elsewhere.
void check_same_windows(const Options& options, const io::SafetensorsFile& state) {
  const auto seed = static_cast<uint64_t>(checkpoint::read_progress(state, checkpoint::kSeed));
  TORCH_CHECK_VALUE(options.seed == seed, "train: --seed must be that of the resumed checkpoint, ", seed,
                    "; got ", options.seed, "; --init takes the weights alone");
  const int64_t seq_len = checkpoint::read_progress(state, checkpoint::kSeqLen);
  TORCH_CHECK_VALUE(options.seq_len == seq_len, "train: --seq-len must be that of the resumed checkpoint, ",
                    seq_len, "; got ", options.seq_len, "; --init takes the weights alone");
}

/// The steps that were done. What is trained goes on with its state; what is frozen has none.
int64_t checked_progress(const Options& options, const path& resumed, const Frozen& frozen) {
  checkpoint::check(resumed, /*needs_state=*/true, frozen.tensors);
  const io::SafetensorsFile state = checkpoint::open_state(resumed);
  check_same_windows(options, state);
  return checkpoint::read_progress(state, checkpoint::kStep);
}

/// The steps done before this run, of a checkpoint that can be begun from.
int64_t first_step_of(const Options& options, const std::optional<path>& resumed,
                      const std::optional<path>& initial, const Frozen& frozen) {
  if (resumed) return checked_progress(options, *resumed, frozen);
  if (initial) checkpoint::check(*initial, /*needs_state=*/false);
  return 0;
}

void check_horizon(const Options& options, int64_t first_step) {
  TORCH_CHECK_VALUE(first_step < options.last_step(), "train: the last step to do, ", options.last_step(),
                    ", must come after those that the resumed checkpoint has done; got ", first_step);
}

/// With all that is wrong whatever the text holds: that may take long to encode.
int64_t checked_start(const Options& options, const Config& config, const std::optional<path>& resumed,
                      const std::optional<path>& initial, const Frozen& frozen) {
  model::check_ranks("train", config, options.tp);
  check_length(options, config);
  const int64_t first_step = first_step_of(options, resumed, initial, frozen);
  check_horizon(options, first_step);
  return first_step;
}

/// Whether the run goes on from where the directory's link is. What is later there was published by a save
/// that was killed before it moved the link, and will be done again.
bool continues(const path& save, const std::optional<path>& resumed) {
  std::error_code not_there;
  return resumed && std::filesystem::equivalent(*resumed, save / checkpoint::kLatest, not_there);
}

/// Saving keeps the newest step directories, so those of another, longer run would make it drop its own at
/// once.
void check_nothing_later(const path& save, int64_t first_step) {
  for (const int64_t step : checkpoint::steps_in(save)) {
    TORCH_CHECK_VALUE(step <= first_step, "train: --save ", save.string(), " holds ",
                      checkpoint::step_name(step), ", later than step ", first_step,
                      " where this run begins; continue with --resume, or choose another directory");
  }
}

void check_directory_of(const char* flag, const path& directory, const path& save) {
  if (directory.empty() || directory.lexically_normal() == save.lexically_normal())
    return;  // the latter is made by then
  TORCH_CHECK_VALUE(::access(directory.c_str(), W_OK | X_OK) == 0 && base::is_directory(directory),
                    "train: ", flag, " must lie in a directory that files can be created in; got ",
                    directory.string());
}

void check_file(const char* flag, const std::string& file) {
  if (!base::exists(file)) return;
  TORCH_CHECK_VALUE(!base::is_directory(file), "train: ", flag, " must name a file; got the directory ",
                    file);
  const base::Fd opened(::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK));
  TORCH_CHECK_VALUE(opened, "train: ", flag, " must be a file that can be written; got ", file);
}

/// A terminal or a device takes lines as a file does; a pipe's name waits for a reader.
void check_log(const std::string& file) {
  std::error_code not_there;
  TORCH_CHECK_VALUE(!std::filesystem::is_fifo(std::filesystem::symlink_status(file, not_there)),
                    "train: --log must be a file or a device; got the pipe ", file);
  check_file("--log", file);
}

void check_report(const std::string& file) {
  check_file("--report", file);
  base::check_new_or_regular_file("train: --report", file);
}

/// All that the run reads where the caller may name a file to write.
std::vector<std::string> inputs_of(const Options& options, const Text& text) {
  std::vector<std::string> inputs = text.paths();
  inputs.insert(inputs.end(), options.text.begin(), options.text.end());
  if (options.tokens) inputs.push_back(*options.tokens);
  if (options.model_config) inputs.push_back(*options.model_config);
  const auto tokenizer = text::tokenizer_paths(options.tokenizer.value_or("bytes"));
  inputs.insert(inputs.end(), tokenizer.begin(), tokenizer.end());
  return inputs;
}

void check_files(const Options& options, const Text& text) {
  for (const auto& [flag, file] : {std::pair("--log", options.log), {"--report", options.report}}) {
    if (!file) continue;
    check_directory_of(flag, path(*file).parent_path(), options.save.value_or(""));
    base::check_no_input(std::string("train: ") + flag, *file, inputs_of(options, text));
  }
  if (options.log) check_log(*options.log);
  if (options.report) check_report(*options.report);
  const bool is_one = options.log && options.report && base::is_same_file(*options.log, *options.report);
  TORCH_CHECK_VALUE(!is_one, "train: --log and --report must be two files; got ", *options.log, " and ",
                    *options.report);
}

void check_save_directory(const path& save, const std::optional<path>& resumed, int64_t first_step) try {
  if (base::is_directory(save) && !continues(save, resumed)) check_nothing_later(save, first_step);
  base::check_writable_directory(save);
  checkpoint::remove_stale(save);
} catch (const base::FileError& error) {
  TORCH_CHECK_VALUE(false, "train: --save must be a directory that can be listed and cleaned up; got: ",
                    error.what_without_backtrace());
}

text::WindowOptions window_options(const Options& options) {
  return {.seq_len = options.seq_len,
          .seed = options.seed,
          .val_fraction = options.val_fraction,
          .windows_per_batch = options.batch_size};
}

std::map<std::string, std::string> companions_of(const Text& text, const std::optional<path>& directory) {
  std::map<std::string, std::string> files = text.tokenizer_files();
  if (directory && base::exists(*directory / checkpoint::kGenerationConfig))
    files[checkpoint::kGenerationConfig] = base::read_text(*directory / checkpoint::kGenerationConfig);
  return files;
}

}  // namespace

Job::Job(const Options& options)
    : options_(validated(options)),
      resumed_(resolved(options.resume)),
      initial_(resolved(options.init)),
      config_(choose_config(options, resumed_, initial_)),
      frozen_(frozen_by(options_.freeze, config_)),
      first_step_(checked_start(options_, config_, resumed_, initial_, frozen_)),
      text_(options, resumed_ ? resumed_ : initial_),
      windows_(text_.tokens(), window_options(options)),
      companions_(companions_of(text_, resumed_ ? resumed_ : initial_)),
      fingerprint_(fingerprint_now()) {
  check_vocabulary(config_, text_.tokens());
  if (resumed_) check_same_tokenizer(text_, *resumed_);
  check_files(options_, text_);
  if (options_.save)
    check_save_directory(*options_.save, resumed_, first_step_);  // last: it makes the directory
}

uint64_t Job::fingerprint_now() const {
  const auto& directory = resumed_ ? resumed_ : initial_;
  uint64_t hash = base::combine(static_cast<uint64_t>(first_step_), text_.tokens().fingerprint());
  if (!directory) return hash;
  hash = base::combine(hash, std::hash<std::string>()(std::filesystem::absolute(*directory).string()));
  return base::combine(hash, checkpoint::fingerprint(*directory, /*needs_state=*/resumed_.has_value()));
}

}  // namespace shardwise::train
