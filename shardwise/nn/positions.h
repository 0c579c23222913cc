// Learned position embedding, added to the residual stream: the table is whole on every rank, and each rank
// adds the positions of its own rows.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

class LearnedPositions {
 public:
  /// Table [max_positions, h].
  LearnedPositions(const std::string& name, int64_t max_positions, int64_t hidden_size,
                   const parallel::Init& init, const comm::Group& group, at::ScalarType dtype);

  /// x + table[position of the row], counted from its sequence's first token; `x` [s, b, h] → the same shape
  /// and placement. No communication: the table's gradient is a term under S<0>, whose ranks see other rows.
  /// Saved: nothing. Errors: c10::ValueError for a sequence longer than the table, and check_step's.
  /// Source: Radford et al. 2018 (GPT), eq. 2.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    const bool is_whole = std::is_same_v<Stream, Invariant>;
    return Placed<Stream>(
        add(x.local(), is_whole ? base::Range{0, step.sequence.size()} : step.own_sequence(), step));
  }

  void append_parameters(UsedParameters& roles) const {
    roles.push_back({weight_, ParameterUse::on_residual});
  }

 private:
  at::Tensor add(const at::Tensor& x, base::Range rows, const Step& step) const;
  ParameterPtr weight_;
};

}  // namespace shardwise::nn
