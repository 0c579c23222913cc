// An examination as it is told: lines for people, or one JSON document.
#pragma once
#include <string>
#include <vector>

#include "shardwise/base/console.h"
#include "shardwise/doctor/report.h"

namespace shardwise::cli {

/// What was examined, and what came out.
struct Examined {
  std::string model;
  int64_t tp;
  std::string dtype;
  int64_t seq_len;
  const doctor::Report& report;
};

struct ReportLine {
  std::string text;
  base::Color color = base::Color::kNone;
};

/// Tables layer by layer, what was audited, what was sent, and last the verdict.
std::vector<ReportLine> to_lines(const Examined& examined);

/// Fields: model, tp, dtype, seq_len, verdict ("rounding" or "bug"), bug (a line, or null), comparisons
/// (task, way, dtype, and by layer the largest difference of activations and of gradients with its bound),
/// audits, traffic (by rank, counted and by formula). Ends with a new line.
std::string to_json(const Examined& examined);

}  // namespace shardwise::cli
