#include "shardwise/train/resumed_options.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::train {

using base::Setting;
using nlohmann::json;

namespace {

/// What happens if a resumed run is given another value of a setting than the saved run had.
enum class Change { is_logged, is_refused };

/// Calls `visit(flag, change, setting)` for every setting in training.json.
template <class Options, class Visit>
void visit_settings(Options& o, const Visit& visit) {
  visit("--val-fraction", Change::is_logged, o.val_fraction);
  visit("--dropout", Change::is_logged, o.dropout);
  visit("--attention-dropout", Change::is_logged, o.attention_dropout);
  visit("--label-smoothing", Change::is_logged, o.label_smoothing);
  visit("--z-loss", Change::is_logged, o.z_loss);
  visit("--freeze", Change::is_logged, o.freeze);
  visit("--batch-size", Change::is_logged, o.batch_size);
  visit("--grad-accum", Change::is_logged, o.grad_accum);
  visit("--steps", Change::is_logged, o.steps);
  visit("--lr", Change::is_logged, o.lr);
  visit("--min-lr", Change::is_logged, o.min_lr);
  visit("--warmup", Change::is_logged, o.warmup);
  visit("--weight-decay", Change::is_refused, o.weight_decay);
  visit("--beta1", Change::is_refused, o.beta1);
  visit("--beta2", Change::is_refused, o.beta2);
  visit("--eps", Change::is_refused, o.eps);
  visit("--clip-grad", Change::is_refused, o.clip_grad);
}

/// `--weight-decay` → `weight_decay`.
std::string key_of(const char* flag) {
  std::string key = std::string(flag).substr(2);
  std::ranges::replace(key, '-', '_');
  return key;
}

template <class T>
bool is_given(const Setting<T>& setting) {
  return setting.is_given();
}
template <class T>
bool is_given(const std::optional<T>& setting) {
  return setting.has_value();
}
bool is_given(const std::vector<std::string>& setting) {
  return !setting.empty();
}

template <class T>
json to_json(const Setting<T>& setting) {
  return static_cast<T>(setting);
}
template <class T>
json to_json(const std::optional<T>& setting) {
  return setting ? json(*setting) : json();
}
json to_json(const std::vector<std::string>& setting) {
  return setting;
}

void read(const base::Fields& fields, const char* name, int64_t& value) {
  value = fields.integer(name);
}
void read(const base::Fields& fields, const char* name, double& value) {
  value = fields.number(name);
}
template <class T>
void read(const base::Fields& fields, const char* name, Setting<T>& setting) {
  T value{};
  read(fields, name, value);
  setting = base::Default{value};
}
template <class T>
void read(const base::Fields& fields, const char* name, std::optional<T>& setting) {
  setting.reset();
  if (fields.find(name)) read(fields, name, setting.emplace());
}
void read(const base::Fields& fields, const char* name, std::vector<std::string>& setting) {
  const json* field = fields.find(name);
  const bool is_list = field && field->is_array() && std::ranges::all_of(*field, &json::is_string);
  TORCH_CHECK_VALUE(is_list, fields.label(name), " must be a list of strings; got ",
                    field ? base::shown(*field) : "none", " [SW0585]");
  setting = field->get<std::vector<std::string>>();
}

/// Takes over the settings of a checkpoint one by one and collects the changes.
class TakeOver {
 public:
  /// Sets `setting`, if it is not given, to `saved`.
  template <class S>
  void take(const char* flag, Change change, S& setting, const S& saved) {
    if (!is_given(setting)) {
      setting = saved;
    } else if (to_json(setting) != to_json(saved)) {
      report(flag, change, to_json(setting), to_json(saved));
    }
  }
  const std::string& changes() const { return changes_; }

 private:
  void report(const char* flag, Change change, const json& given, const json& saved) {
    TORCH_CHECK_VALUE(change == Change::is_logged, "train: ", flag, " must be the resumed checkpoint's, ",
                      base::shown(saved), "; got ", base::shown(given),
                      "; leave it out, or load only the weights with --init [SW0228]");
    changes_ += fmt::format("{}{} from {} to {}", changes_.empty() ? "" : ", ", flag,
                            saved.is_null() ? "its default" : base::shown(saved), base::shown(given));
  }

  std::string changes_;
};

/// Takes over what determines the training windows.
void take_windows(TrainOptions& options, const io::SafetensorsFile& state, TakeOver& take_over) {
  const auto seed = static_cast<uint64_t>(checkpoint::read_progress(state, checkpoint::kSeed));
  const int64_t seq_len = checkpoint::read_progress(state, checkpoint::kSeqLen);
  take_over.take<Setting<uint64_t>>("--seed", Change::is_refused, options.seed, base::Default{seed});
  take_over.take<Setting<int64_t>>("--seq-len", Change::is_refused, options.seq_len, base::Default{seq_len});
}

void take_settings(TrainOptions& options, const std::string& file, TakeOver& take_over) {
  const json object = base::read_json(file);
  const base::Fields fields(object, file + ": ");
  visit_settings(options, [&](const char* flag, Change change, auto& setting) {
    auto saved = setting;
    read(fields, key_of(flag).c_str(), saved);
    take_over.take(flag, change, setting, saved);
  });
}

}  // namespace

std::string settings_json(const TrainOptions& options) {
  TrainOptions saved = options;
  saved.warmup = options.warmup_steps();  // with more --steps, the default would warm up again
  nlohmann::ordered_json object;
  visit_settings(saved, [&](const char* flag, Change, const auto& setting) {
    if (const json value = to_json(setting); !value.is_null()) object[key_of(flag)] = value;
  });
  return object.dump(1) + "\n";
}

ResumedOptions resumed_options(const TrainOptions& given, const std::filesystem::path& checkpoint) {
  ResumedOptions resumed{given};
  TakeOver take_over;
  take_windows(resumed.options, checkpoint::open_state(checkpoint), take_over);
  const std::string file = checkpoint / checkpoint::kTrainingFile;
  resumed.lacks_settings = !base::exists(file);
  if (!resumed.lacks_settings) take_settings(resumed.options, file, take_over);
  resumed.changes = take_over.changes();
  return resumed;
}

}  // namespace shardwise::train
