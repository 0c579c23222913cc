#include "shardwise/train/job.h"

#include <fcntl.h>
#include <unistd.h>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/hash.h"
#include "shardwise/checkpoint/auxiliary_files.h"
#include "shardwise/checkpoint/directories.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/run_lock.h"
#include "shardwise/config/layout.h"
#include "shardwise/train/loop.h"

namespace shardwise::train {

using config::Config;
using std::filesystem::path;

namespace {

std::optional<path> resolved(const std::optional<std::string>& directory) {
  if (!directory) return std::nullopt;
  return checkpoint::resolve(*directory);
}

/// Returns the checkpoint of --resume; none next to --init, which validate() refuses.
std::optional<path> resumed_by(const TrainOptions& options) {
  return options.init ? std::nullopt : resolved(options.resume);
}

ResumedOptions validated(const TrainOptions& given, const std::optional<path>& resumed) {
  ResumedOptions result = resumed ? resumed_options(given, *resumed) : ResumedOptions{given};
  base::Setting<int64_t>& grad_accum = result.options.grad_accum;
  if (!resumed && !grad_accum.is_given()) grad_accum = base::Default{given.dp};
  validate(result.options);
  return result;
}

std::string dtype_name(const std::string& flag) {
  if (flag == "fp64") return "float64";
  return flag == "fp32" ? "float32" : "bfloat16";
}

std::optional<Config> requested_config(const TrainOptions& options) {
  if (options.model_config) return config::load_config(*options.model_config);
  if (options.preset) return config::preset(*options.preset);
  return std::nullopt;
}

void check_vocabulary(const Config& config, const text::TokenSource& tokens) {
  TORCH_CHECK_VALUE(config.vocab_size >= tokens.vocab_size(),
                    "train: the model's vocab_size must be at least the tokenizer's, ", tokens.vocab_size(),
                    "; got ", config.vocab_size, " [SW0201]");
}

/// A different tokenizer would silently train on different ids.
void check_same_tokenizer(const Text& text, const path& resumed) {
  TORCH_CHECK_VALUE(text.tokenizer_files() == tokenizer_files_in(resumed),
                    "train: --tokenizer must be the resumed checkpoint's; got a tokenizer that differs from ",
                    resumed.string(), "; to load only the weights, use --init [SW0202]");
}

/// A checkpoint contains its config. --preset or --model-config must describe the same model.
void check_same_model(Config requested, const Config& stored, const path& directory) {
  requested.dtype = stored.dtype;
  TORCH_CHECK_VALUE(
      requested == stored,
      "train: --preset or --model-config must be the checkpoint's model; got a model that differs from ",
      (directory / "config.json").string(), "; omit --preset and --model-config [SW0226]");
}

std::string run_dtype(const TrainOptions& options, const std::optional<path>& resumed, const Config& stored) {
  if (!resumed) return dtype_name(options.dtype.value_or("fp32"));
  TORCH_CHECK_VALUE(!options.dtype || dtype_name(*options.dtype) == stored.dtype,
                    "train: --dtype must be the resumed checkpoint's, ", stored.dtype, "; got ",
                    *options.dtype, " [SW0227]");
  return stored.dtype;
}

Config choose_config(const TrainOptions& options, const std::optional<path>& resumed,
                     const std::optional<path>& initial) {
  const std::optional<Config> requested = requested_config(options);
  const std::optional<path> directory = resumed ? resumed : initial;
  Config config = directory ? config::load_config(*directory) : requested.value_or(config::preset("tiny"));
  TORCH_CHECK_VALUE(!config.quantization, "train: quantized weights cannot be trained; got ",
                    config.quantization ? config.quantization->text() : "",
                    "; train the unquantized model [SW0023]");
  if (directory && requested) check_same_model(*requested, config, *directory);
  config::check_stages("train", stages_of(options), config.num_hidden_layers);
  config.dtype = run_dtype(options, resumed, config);
  return config;
}

void check_length(const TrainOptions& options, const Config& config) {
  TORCH_CHECK_VALUE(options.seq_len <= config.max_position_embeddings,
                    "train: --seq-len must be at most max_position_embeddings, ",
                    config.max_position_embeddings, "; got ", options.seq_len, " [SW0203]");
}

/// Checks that the number of tokens that the checkpoint's run has read, and this run's after it, fit.
void check_tokens_done(const io::SafetensorsFile& state) {
  constexpr int64_t kMaxTokens = int64_t{1} << 62;
  const int64_t sequences = checkpoint::read_progress(state, checkpoint::kSequences);
  const int64_t seq_len = checkpoint::read_progress(state, checkpoint::kSeqLen);
  TORCH_CHECK_VALUE(seq_len == 0 || sequences <= kMaxTokens / seq_len, state.path(),
                    ": progress.sequences x progress.seq_len must be at most ", kMaxTokens, "; got ",
                    sequences, " x ", seq_len, " [SW0701]");
}

/// Checks the resumed checkpoint and returns its step. It needs optimizer state for all trained parameters.
int64_t checked_progress(const path& resumed, const config::Frozen& frozen) {
  checkpoint::check(resumed, /*needs_state=*/true, frozen.tensors);
  const io::SafetensorsFile state = checkpoint::open_state(resumed);
  check_tokens_done(state);
  return checkpoint::read_progress(state, checkpoint::kStep);
}

/// Checks the starting checkpoint and returns the number of steps done before this run.
int64_t first_step_of(const std::optional<path>& resumed, const std::optional<path>& initial,
                      const config::Frozen& frozen) {
  if (resumed) return checked_progress(*resumed, frozen);
  if (initial) checkpoint::check(*initial, /*needs_state=*/false);
  return 0;
}

void check_horizon(const TrainOptions& options, int64_t first_step) {
  TORCH_CHECK_VALUE(first_step < options.last_step(),
                    "train: --steps or --stop-after must be above the resumed checkpoint's step, ",
                    first_step, "; got ", options.last_step(), " [SW0230]");
}

/// Refuses to save among the files of --text, where the next run would train on the checkpoints; as the
/// checkpoint that the run starts from; and in it if it is a step of another run, which may remove it.
void check_save_is_no_input(const TrainOptions& options, const std::optional<path>& start) {
  if (!options.save) return;
  std::vector<std::string> inputs = options.text;
  if (start && (base::is_same_file(*options.save, *start) ||
                checkpoint::is_step_name(std::filesystem::canonical(*start).filename())))
    inputs.push_back(*start);
  base::check_not_an_input("train: --save", *options.save, inputs);
}

/// Runs all checks that do not need the text, since encoding it may take long. Returns the number of steps
/// done before this run.
int64_t checked_start(const TrainOptions& options, const Config& config, const std::optional<path>& resumed,
                      const std::optional<path>& initial, const config::Frozen& frozen) {
  check_save_is_no_input(options, resumed ? resumed : initial);
  config::check_ranks("train", config, options.tp);
  check_length(options, config);
  const int64_t first_step = first_step_of(resumed, initial, frozen);
  check_horizon(options, first_step);
  return first_step;
}

/// Returns whether the run resumes from the checkpoint that `latest` links to. Later step directories are
/// then from a save that was killed before it moved the link, and are overwritten.
bool resumes_latest(const path& save, const std::optional<path>& resumed) {
  std::error_code not_found;
  return resumed && std::filesystem::equivalent(*resumed, save / checkpoint::kLatest, not_found);
}

/// Saving keeps the newest step directories, so later ones of another run would make it delete its own
/// checkpoints at once, and earlier ones would be deleted by it.
void check_nothing_later(const path& save, const std::optional<path>& resumed, int64_t first_step) {
  if (!base::is_directory(save) || resumes_latest(save, resumed)) return;
  const bool is_resumed_there =
      resumed && base::is_same_file(std::filesystem::absolute(*resumed).parent_path(), save);
  for (const int64_t step : checkpoint::steps_in(save)) {
    TORCH_CHECK_VALUE(step <= first_step, "train: --save ", save.string(), " must not contain steps after ",
                      first_step, ", where this run starts; got ", checkpoint::step_name(step),
                      "; use --resume, or another directory [SW0286]");
    TORCH_CHECK_VALUE(!resumed || is_resumed_there, "train: --save ", save.string(),
                      " must have no checkpoints of another run than that of --resume ", resumed->string(),
                      ", which saving would delete; got ", checkpoint::step_name(step), " [SW0884]");
  }
}

void check_directory_of(const char* flag, const path& directory, const std::optional<std::string>& save) {
  if (directory.empty() || (save && base::is_same_file(directory, *save)))
    return;  // the save directory exists by then
  TORCH_CHECK_VALUE(::access(directory.c_str(), W_OK | X_OK) == 0 && base::is_directory(directory),
                    "train: ", flag, " must be in a writable directory; got ", directory.string(),
                    " [SW0289]");
}

void check_file(const char* flag, const std::string& file) {
  if (!base::exists(file)) return;
  TORCH_CHECK_VALUE(!base::is_directory(file), "train: ", flag, " must be a file; got the directory ", file,
                    " [SW0291]");
  const base::Fd opened(::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK));
  TORCH_CHECK_VALUE(opened, "train: ", flag, " must be a writable file; got ", file, " [SW0290]");
}

/// Opening a named pipe would block until there is a reader; terminals and devices are accepted.
void check_log(const std::string& file) {
  std::error_code not_found;
  TORCH_CHECK_VALUE(!std::filesystem::is_fifo(std::filesystem::symlink_status(file, not_found)),
                    "train: --log must be a file or a device; got the pipe ", file, " [SW0292]");
  check_file("--log", file);
}

/// For files that are written by a rename.
void check_result(const char* flag, const std::string& file) {
  check_file(flag, file);
  base::check_new_or_regular_file(std::string("train: ") + flag, file);
}

void check_profile(const TrainOptions& options, int64_t first_step) {
  const int64_t steps = options.last_step() - first_step;
  TORCH_CHECK_VALUE(!options.profile || steps >= kFirstProfiledStep, "train: --profile records steps ",
                    kFirstProfiledStep, " to ", kLastProfiledStep, " of a run; got a run of ", steps,
                    " [SW0726]");
}

/// Returns the paths of all files that the run reads, which output flags must not name.
std::vector<std::string> inputs_of(const TrainOptions& options, const Text& text,
                                   const std::optional<path>& start) {
  std::vector<std::string> inputs = text.paths();
  if (start) inputs.push_back(*start);
  inputs.insert(inputs.end(), options.text.begin(), options.text.end());
  if (options.tokens) inputs.push_back(*options.tokens);
  if (options.model_config) inputs.push_back(*options.model_config);
  const auto tokenizer = text::tokenizer_paths(options.tokenizer.value_or("bytes"));
  inputs.insert(inputs.end(), tokenizer.begin(), tokenizer.end());
  return inputs;
}

/// Returns whether saving writes or removes this file: the directory itself, the link, the lock, or a step or
/// a file in it.
bool is_written_by_saves(const path& file, const path& save) {
  const std::string within = base::path_within(file, save), first = within.substr(0, within.find('/'));
  return first == "." || first == checkpoint::kLatest || first == checkpoint::RunLock::kFile ||
         checkpoint::is_step_name(first);
}

void check_files(const TrainOptions& options, const std::vector<std::string>& inputs) {
  const std::initializer_list<std::pair<const char*, std::optional<std::string>>> written = {
      {"--log", options.log}, {"--report", options.report}, {"--profile", options.profile}};
  for (const auto& [flag, file] : written) {
    if (!file) continue;
    check_directory_of(flag, path(*file).parent_path(), options.save);
    base::check_not_an_input(std::string("train: ") + flag, *file, inputs);
    TORCH_CHECK_VALUE(!options.save || !is_written_by_saves(*file, *options.save), "train: ", flag,
                      " must not be --save or a name that saving writes there; got ", *file, " [SW0703]");
  }
  if (options.log) check_log(*options.log);
  if (options.report) check_result("--report", *options.report);
  if (options.profile) check_result("--profile", *options.profile);
  for (auto one = written.begin(); one != written.end(); ++one) {
    for (auto other = written.begin(); other != one; ++other) {
      TORCH_CHECK_VALUE(!one->second || !other->second || !base::is_same_file(*one->second, *other->second),
                        "train: ", other->first, " and ", one->first, " must be different files; got ",
                        *other->second, " and ", *one->second, " [SW0295]");
    }
  }
}

void check_save_directory(const path& save, const std::optional<path>& resumed, int64_t first_step) try {
  check_nothing_later(save, resumed, first_step);
  base::check_writable_directory(save);
  checkpoint::remove_stale(save);
} catch (const base::FileError& error) {
  TORCH_CHECK_VALUE(false, "train: --save must be a readable and writable directory; got: ",
                    base::without_code(error.what_without_backtrace()), " [SW0296]");
}

text::WindowOptions window_options(const TrainOptions& options) {
  return {.seq_len = options.seq_len,
          .seed = options.seed,
          .val_fraction = options.val_fraction,
          .windows_per_batch = options.batch_size};
}

std::map<std::string, std::string> auxiliary_files_of(const TrainOptions& options, const Text& text,
                                                      const std::optional<path>& directory) {
  std::map<std::string, std::string> files = text.tokenizer_files();
  files[checkpoint::kTrainingFile] = settings_json(options);
  if (directory && base::exists(*directory / checkpoint::kGenerationConfig))
    files[checkpoint::kGenerationConfig] =
        checkpoint::read_auxiliary_file(*directory, checkpoint::kGenerationConfig);
  return files;
}

}  // namespace

Start start_of(const TrainOptions& given) {
  Start start{resumed_by(given), given.resume ? std::nullopt : resolved(given.init), {}, {}};
  start.resumption = validated(given, start.resumed);
  start.config = choose_config(start.options(), start.resumed, start.initial);
  return start;
}

Job::Job(const TrainOptions& given)
    : start_(start_of(given)),
      frozen_(config::frozen_by("train", options().freeze, config())),
      first_step_(checked_start(options(), config(), resumed(), initial(), frozen_)),
      text_(options(), starting_checkpoint()),
      windows_(text_.tokens(), window_options(options())),
      auxiliary_files_(auxiliary_files_of(options(), text_, starting_checkpoint())),
      fingerprint_(fingerprint_now()) {
  check_vocabulary(config(), text_.tokens());
  if (resumed()) check_same_tokenizer(text_, *resumed());
  check_files(options(), inputs_of(options(), text_, starting_checkpoint()));
  check_profile(options(), first_step_);
  if (options().save)
    check_save_directory(*options().save, resumed(), first_step_);  // last, since it creates the directory
}

void Job::check_no_later_steps() const {
  check_nothing_later(*options().save, resumed(), first_step_);
}

uint64_t Job::fingerprint_now() const {
  const auto& directory = starting_checkpoint();
  uint64_t hash = base::mix(base::kHashBegin, static_cast<uint64_t>(first_step_));
  hash = base::mix(hash, text_.tokens().fingerprint());
  if (!directory) return hash;
  hash = base::mix(hash, base::hash_of(std::filesystem::absolute(*directory).string()));
  return base::mix(hash, checkpoint::fingerprint(*directory, /*needs_state=*/resumed().has_value()));
}

}  // namespace shardwise::train
