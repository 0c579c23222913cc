#include "shardwise/cli/train_progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise::cli {
namespace {

constexpr double kSecondsBetweenFrames = 0.1, kSecondsBetweenLines = 5;
constexpr int kMaxBarColumns = 40, kMinBarColumns = 8;

std::string format_rate(double per_s) {
  if (per_s >= 1e6) return fmt::format("{:.1f}M", per_s / 1e6);
  if (per_s >= 1e3) return fmt::format("{:.1f}k", per_s / 1e3);
  return fmt::format("{:.0f}", per_s);
}

std::string bar(const ProgressState& state, int columns) {
  const double share = state.end > 0 ? static_cast<double>(state.step) / static_cast<double>(state.end) : 1;
  const int filled = std::clamp(static_cast<int>(share * columns), 0, columns);
  return "[" + std::string(filled, '#') + std::string(columns - filled, '.') + "] ";
}

}  // namespace

double seconds_left(const ProgressState& state) {
  const int64_t done = state.step - state.begin;
  if (done <= 0) return -1;
  return state.elapsed_s / static_cast<double>(done) * static_cast<double>(state.end - state.step);
}

std::string progress_line(const ProgressState& state, int bar_columns) {
  const double left_s = seconds_left(state);
  return fmt::format("step {}/{} {}loss {:.4f} {} tok/s {} left", state.step, state.end,
                     bar_columns > 0 ? bar(state, bar_columns) : "", state.loss,
                     format_rate(state.tokens_per_s), left_s < 0 ? "?" : base::format_duration(left_s));
}

TrainProgress::TrainProgress(int64_t begin, int64_t end, base::Console& console) : console_(console) {
  state_.step = state_.begin = begin;
  state_.end = end;
}

TrainProgress::~TrainProgress() {
  if (!is_drawn_) draw();
  console_.finish_progress_line();
}

void TrainProgress::update(int64_t step, double loss, double tokens_per_s) {
  state_.step = step, state_.loss = loss, state_.tokens_per_s = tokens_per_s;
  state_.elapsed_s = since_begin_.seconds();
  is_drawn_ = false;
  const double interval_s = console_.is_terminal() ? kSecondsBetweenFrames : kSecondsBetweenLines;
  if (!has_drawn_ || since_drawn_.seconds() >= interval_s) draw();
}

void TrainProgress::draw() {
  if (console_.is_terminal()) {
    const int text_columns = static_cast<int>(progress_line(state_, 0).size());
    const int room = console_.width() - 1 - text_columns - 3;  // 3: brackets and a space
    console_.set_progress_line(
        progress_line(state_, room < kMinBarColumns ? 0 : std::min(room, kMaxBarColumns)));
  } else {
    console_.line(progress_line(state_, 0));
  }
  since_drawn_.restart();
  is_drawn_ = has_drawn_ = true;
}

}  // namespace shardwise::cli
