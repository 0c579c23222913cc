#include "shardwise/cli/runs_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/cli/braille.h"
#include "shardwise/cli/run_summary.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/units.h"

namespace shardwise::cli {
namespace {

constexpr int kCurveColumns = 72, kCurveRows = 8;
constexpr const char* kNone = "-";

std::string ms_or_none(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.2f}", *ms) : kNone;
}

std::string mb_or_none(const std::optional<int64_t>& bytes, int digits = 2) {
  return bytes ? fmt::format("{:.{}f}", megabytes(*bytes), digits) : kNone;
}

std::optional<double> last_val_loss(const RunFile& run) {
  for (auto step = run.steps.rbegin(); step != run.steps.rend(); ++step)
    if (step->val_loss) return step->val_loss;
  return std::nullopt;
}

/// Returns "12.31" or, next to a measured time, "12.31 (-4.4 %)".
std::string planned_step_text(const RunFile& run) {
  if (!run.planned) return kNone;
  const double planned = run.planned->total();
  const bool is_measured = run.measured_ms && *run.measured_ms > 0;
  return fmt::format("{:.2f}", planned) +
         (is_measured ? fmt::format(" ({:+.1f} %)", 100 * (planned / *run.measured_ms - 1)) : "");
}

std::string overview(const std::vector<RunFile>& runs) {
  std::vector<Row> rows = {
      {"run", "ranks", "parameters", "steps", "loss", "validation", "median step ms", "planned", "tokens/s"}};
  for (const RunFile& run : runs) {
    const auto validation = last_val_loss(run);
    rows.push_back({run.name, ranks_text(run),
                    fmt::format("{:.2f}M", static_cast<double>(run.parameters) / 1e6),
                    fmt::format("{} to {}", run.steps.front().step, run.steps.back().step),
                    fmt::format("{:.4f}", run.steps.back().loss),
                    validation ? fmt::format("{:.4f}", *validation) : kNone, ms_or_none(run.measured_ms),
                    planned_step_text(run), fmt::format("{:.0f}", tokens_per_second(run))});
  }
  return table(rows);
}

std::string times_table(const std::vector<RunFile>& runs) {
  std::vector<Row> rows = {{"mean step, ms", "rank", "step", "computing", "communicating", "waiting"}};
  for (const RunFile& run : runs) {
    const std::vector<StepMeans> means = means_by_rank(run);
    for (size_t rank = 0; rank < means.size(); ++rank)
      rows.push_back({run.name, std::to_string(rank), ms_or_none(means[rank].step_ms),
                      ms_or_none(means[rank].computing_ms()), ms_or_none(means[rank].communicating_ms()),
                      ms_or_none(means[rank].wait_ms)});
    if (run.planned)
      rows.push_back({run.name, "planned", ms_or_none(run.planned->total()), ms_or_none(run.planned->compute),
                      ms_or_none(run.planned->communication), kNone});
  }
  return table(rows);
}

std::string bytes_table(const std::vector<RunFile>& runs) {
  std::vector<Row> rows = {{"MB", "rank", "peak memory", "planned", "sent per step", "planned", "copied"}};
  for (const RunFile& run : runs) {
    for (size_t i = 0; i < run.ranks.size(); ++i) {
      const RunRank& rank = run.ranks[i];
      const auto planned = rank.expected_memory ? std::optional(total(*rank.expected_memory)) : std::nullopt;
      rows.push_back({run.name, std::to_string(i), mb_or_none(total(rank.memory)), mb_or_none(planned),
                      mb_or_none(rank.comm_bytes, 3), mb_or_none(rank.expected_comm_bytes, 3),
                      mb_or_none(rank.copied_bytes, 3)});
    }
  }
  return table(rows);
}

/// Returns the frame around the losses of all runs.
BrailleFrame frame_of_losses(const std::vector<RunFile>& runs) {
  constexpr double kMost = std::numeric_limits<double>::max();
  BrailleFrame frame{kCurveColumns, kCurveRows, kMost, -kMost, kMost, -kMost};
  for (const RunFile& run : runs) {
    frame.left = std::min(frame.left, static_cast<double>(run.steps.front().step));
    frame.right = std::max(frame.right, static_cast<double>(run.steps.back().step));
    for (const RunStep& step : run.steps) {
      frame.low = std::min(frame.low, step.loss);
      frame.high = std::max(frame.high, step.loss);
    }
  }
  return frame;
}

std::string loss_curve(const RunFile& run, const BrailleFrame& frame) {
  std::vector<std::pair<double, double>> points;
  for (const RunStep& step : run.steps) points.emplace_back(step.step, step.loss);
  std::string text = fmt::format("loss of {}, nats per token\n", run.name);
  const std::vector<std::string> lines = braille_curve(points, frame);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string label = i == 0                  ? fmt::format("{:.3f}", frame.high)
                              : i + 1 == lines.size() ? fmt::format("{:.3f}", frame.low)
                                                      : "";
    text += fmt::format("{:>8} {}\n", label, lines[i]);
  }
  const std::string last = fmt::format("{:.0f}", frame.right);
  return text + fmt::format("{:>8} {:<{}}{}\n", "step", fmt::format("{:.0f}", frame.left),
                            frame.columns - static_cast<int>(last.size()), last);
}

std::string differences_text(const std::vector<RunFile>& runs) {
  std::string text;
  for (size_t i = 1; i < runs.size(); ++i) {
    const LossDifference difference = loss_difference(runs[0], runs[i]);
    text +=
        fmt::format("losses of {} and {}: largest difference of {} steps in common {:.1e}; {} are equal\n",
                    runs[i].name, runs[0].name, difference.steps, difference.largest, difference.equal);
  }
  return text;
}

}  // namespace

std::string to_text(const std::vector<RunFile>& runs) {
  std::string text;
  for (const RunFile& run : runs) text += fmt::format("{}: {}\n", run.name, run.description);
  text += fmt::format("\n{}\n{}\n{}", overview(runs), times_table(runs), bytes_table(runs));
  for (const RunFile& run : runs) text += "\n" + loss_curve(run, frame_of_losses(runs));
  const std::string differences = differences_text(runs);
  return text + (differences.empty() ? "" : "\n" + differences);
}

std::string to_text(const std::vector<TimelineRank>& timeline) {
  std::vector<Row> rows = {{fmt::format("last {}, ms", timeline[0][0].op), "all", "computing",
                            "communicating", "waiting", "host"}};
  for (size_t rank = 0; rank < timeline.size(); ++rank) {
    const TimelineParts parts = parts_of(timeline[rank]);
    Row& row = rows.emplace_back(Row{fmt::format("rank {}", rank)});
    for (const double us : {timeline[rank][0].duration_us, parts.computing_us, parts.communicating_us,
                            parts.waiting_us, parts.host_us})
      row.push_back(fmt::format("{:.2f}", us / 1e3));
  }
  return table(rows);
}

}  // namespace shardwise::cli
