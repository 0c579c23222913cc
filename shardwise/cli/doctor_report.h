// The doctor's report as human-readable lines or as one JSON document.
#pragma once
#include <string>
#include <vector>

#include "shardwise/base/console.h"
#include "shardwise/doctor/report.h"

namespace shardwise::cli {

/// The model that the doctor ran, and the report.
struct DoctorReport {
  std::string model;
  int64_t tp;
  std::string dtype;
  int64_t seq_len;
  const doctor::Report& report;
};

struct ReportLine {
  std::string text;
  base::Color color = base::Color::none;
};

/// Returns tables of differences per layer, the checks, the communication, and last the verdict.
std::vector<ReportLine> to_lines(const DoctorReport& doctor_report);

/// Returns a JSON object and a newline. Fields: model, tp, dtype, seq_len, verdict ("rounding" or "bug"), bug
/// (a line, or null), comparisons (test_case, run_config, dtype, grad_norm, passed, and layers: module, and
/// the largest difference of activations and of gradients with its bound), checks (name, scope, passed,
/// detail), traffic (by rank, counted and by formula).
std::string to_json(const DoctorReport& doctor_report);

}  // namespace shardwise::cli
