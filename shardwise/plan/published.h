// Published figures beside what this room computes for the same models and machines.
#pragma once
#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::plan {

/// A GPT model of Korthikanti et al. 2022, arXiv 2205.05198, tables 3 and 5, with the split of its runs on
/// A100 of 80 GB: TP+SP, sequences of 2048 tokens, a vocabulary of 51200.
struct PublishedGpt {
  std::string name;           // by its parameters
  int64_t hidden_size;        // features of the residual stream
  int64_t layers;             // blocks
  int64_t heads;              // attention heads
  int64_t tp;                 // ranks of tensor parallelism
  int64_t pp;                 // pipeline stages
  int64_t batch_size;         // sequences of a step
  int64_t micro_batch_size;   // sequences
  int64_t chunks;             // of a stage's blocks; more than one: the interleaved schedule
  double flop;                // of a step, formula 72BLsh²(1 + s/6h + v/12hL)
  double seconds;             // of a step with selective recomputation
  double seconds_recomputed;  // of a step with full recomputation
};
/// Returns the models of these tables.
std::vector<PublishedGpt> published_gpt_models();
/// Returns the config of such a model.
config::Config config_of(const PublishedGpt& model);

/// A figure as published and as planned.
struct PublishedFigure {
  std::string group;   // of like figures: "parameters"
  std::string name;    // within its group
  std::string source;  // of the published value
  double published;    // in the group's unit
  double planned;      // in the same unit
  double lowest;       // that error() may be; a formula's band is its last digit
  double highest;      // that error() may be
  /// Returns the planned value's relative error.
  double error() const { return planned / published - 1; }
  /// Returns whether the error is in the band.
  bool is_in_band() const { return lowest <= error() && error() <= highest; }
};

/// Returns the figures of GPT blocks' saved activations and of their states.
std::vector<PublishedFigure> published_activations();

/// Returns what other estimators print for model states.
std::vector<PublishedFigure> published_estimates();

/// Returns all figures, computed anew.
std::vector<PublishedFigure> published_figures();

}  // namespace shardwise::plan
