// Learned position embeddings, added to the residual stream. Every rank has the full table and adds the
// positions of its rows.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// A table of position embeddings [max_positions, h].
class LearnedPositions {
 public:
  /// Allocates the table.
  LearnedPositions(const std::string& name, int64_t max_positions, int64_t hidden_size,
                   const parallel::Init& init, const comm::Group& group, at::ScalarType dtype);

  /// Adds to each row the embedding of its position, counted from its sequence's first token.
  /// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
  /// Cost: no communication; under S<0> the table's gradient is partial.
  /// Saved: nothing.
  /// Errors: c10::ValueError if a sequence is longer than the table, or the step does not fit (check_step).
  /// Source: Radford et al. 2018 (GPT), eq. 2.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    const bool is_full = std::is_same_v<Stream, Invariant>;
    return Placed<Stream>(
        add(x.local(), is_full ? base::Range{0, step.sequence.size()} : step.local_sequence(), step));
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    parameters.push_back({weight_, ParameterUse::on_residual});
  }

 private:
  at::Tensor add(const at::Tensor& x, base::Range rows, const Step& step) const;
  ParameterPtr weight_;
};

}  // namespace shardwise::nn
