#include "shardwise/parallel/row_product.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/product.h"
#include "shardwise/parallel/blockwise_reduce_scatter.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/verify.h"
#include "shardwise/parallel/weight_product.h"

namespace shardwise::parallel {

using at::Tensor;

namespace {

enum class RowOutputCollective { f_star, g_star, none };

struct Row {
  LinearParameters w;
  Step step;
  RowOutputCollective collective;
  RowOptions options;

  bool recomputes_input() const { return static_cast<bool>(options.input.make); }
};

at::DimVector output_sizes(const Tensor& x, const Row& row) {
  return {x.size(0), x.size(1), row.w.weight->size(0)};
}

/// Computes x Wᵀ, [s, b, h], a Partial, in the symmetric heap. Under g* it multiplies the blocks of
/// reduce_scattered_product, so that the bits are the same.
Tensor partial_product(const Tensor& x, const Row& row) {
  Tensor y = row.step.group.empty(output_sizes(x, row), x.scalar_type());
  const base::Split& sequence = row.step.sequence;
  const auto multiply_rows = [&](const base::Range& range) {
    Tensor y_rows = rows_matrix(y, range);
    weight_product_out(y_rows, rows_matrix(x, range), *row.w.weight);
  };
  if (row.collective != RowOutputCollective::g_star) multiply_rows({0, sequence.size()});
  for (int rank = 0; row.collective == RowOutputCollective::g_star && rank < sequence.ranks(); ++rank)
    multiply_rows(sequence.range(rank));
  return y;
}

/// g*: returns this rank's rows of the sum over the ranks.
Tensor reduce_scattered_product(const Tensor& x, const Row& row) {
  BlockwiseReduceScatter reduce_scatter(output_sizes(x, row), x.scalar_type(), row.step);
  reduce_scatter.compute([&](Tensor& rows, int rank) {
    weight_product_out(rows, rows_matrix(x, row.step.sequence.range(rank)), *row.w.weight);
  });
  return reduce_scatter.wait();
}

/// f*: sums `y` over the ranks, in place.
Tensor all_reduced(Tensor y, const Step& step) {
  step.group.all_reduce_(y);
  return y;
}

Tensor reduced_product(const Tensor& x, const Row& row) {
  if (row.collective == RowOutputCollective::g_star) return reduce_scattered_product(x, row);
  const Tensor y = partial_product(x, row);
  return row.collective == RowOutputCollective::f_star ? all_reduced(y, row.step) : y;
}

Tensor with_bias(Tensor y, const ParameterPtr& bias) {
  if (bias) y.add_(bias->value.detach());
  return y;
}

Tensor discarded_output(const Tensor& x, const Row& row) {
  const int64_t rows =
      row.collective == RowOutputCollective::g_star ? row.step.local_sequence().size() : x.size(0);
  return at::empty({rows, x.size(1), row.w.weight->size(0)}, x.options());
}

Tensor forward_product(const Tensor& x, const Row& row) {
  if (row.options.use == OutputUse::discarded) return discarded_output(x, row);
  Tensor y = reduced_product(x, row);
  return row.collective == RowOutputCollective::none ? y : with_bias(std::move(y), row.w.bias);
}

Tensor empty_input_gradient(const Tensor& dy_like, const Row& row) {
  return at::empty({row.step.sequence.size(), dy_like.size(1), row.w.weight->value.size(1)},
                   dy_like.options());
}

/// Gathers dY and computes dX = dY W for each rank's rows and dW for each run of ranks, as the rows arrive.
/// `x` is undefined if W is frozen.
Tensor backward_sharded(const Tensor& dy_shard, const Tensor& x, const Row& row, bool needs_dx) {
  const GatheredRows rows = GatheredRows::gather(dy_shard, row.step);
  verify_equal(rows, "a row-parallel layer's gathered output gradient", row.step);
  const Parameter& weight = *row.w.weight;
  Tensor gradient = weight.main_grad_if_trainable();
  Tensor dx = needs_dx ? empty_input_gradient(dy_shard, row) : Tensor();
  for (const base::Range& ranks : rows.runs(dy_shard.size(1))) {
    for (const int rank : needs_dx ? rows.chunk_order(ranks) : std::vector<int>()) {
      Tensor dx_rows = rows.matrix_of(dx, rank);
      kernels::product_out(dx_rows, rows.matrix(rank), weight.value.detach());
    }
    if (gradient.defined()) kernels::add_weight_grad_(gradient, rows.matrix(ranks), rows.matrix_of(x, ranks));
  }
  return dx;
}

Tensor backward_unsharded(const Tensor& dy, const Tensor& x, const Row& row, bool needs_dx) {
  const Parameter& weight = *row.w.weight;
  Tensor gradient = weight.main_grad_if_trainable();
  if (gradient.defined()) kernels::add_weight_grad_(gradient, as_matrix(dy), as_matrix(x));
  if (!needs_dx) return {};
  Tensor dx = empty_input_gradient(dy, row);
  Tensor dx_matrix = as_matrix(dx);
  kernels::product_out(dx_matrix, as_matrix(dy), weight.value.detach());
  return dx;
}

/// Adds the bias gradient of this rank's rows, which is partial under g*. Without a reduction forward added
/// no bias.
void add_bias_gradient(const Tensor& dy, const Row& row) {
  Tensor gradient = row.w.bias ? row.w.bias->main_grad_if_trainable() : Tensor();
  if (gradient.defined() && row.collective != RowOutputCollective::none)
    kernels::add_bias_grad_(gradient, as_matrix(dy));
}

/// False if neither dX nor dW is needed, on any rank; backward then gathers nothing.
bool needs_rows(const Row& row, bool needs_dx) {
  return needs_dx || !row.w.weight->is_frozen();
}

Tensor input_of(const Tensor& saved, const Row& row) {
  return saved.defined() && row.recomputes_input() ? row.options.input.make(saved) : saved;
}

struct RowProduct : torch::autograd::Function<RowProduct> {
  /// Weight and bias are parameters only so that autograd sees them; the code uses those in `row`.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*weight*/,
                        const std::optional<Tensor>& /*bias*/, Row row) {
    const Tensor& input = row.recomputes_input() ? row.options.input.from : x;
    context->save_for_backward({row.w.weight->is_frozen() ? Tensor() : input});
    Tensor y = forward_product(x, row);
    row.options.input.from.reset();  // saved above, where autograd releases it
    save_state(context, std::move(row));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& row = saved_state<Row>(context);
    base::enter_part(row.w.weight->name);
    const Tensor dy = gradients[0].contiguous();
    const bool needs_dx = context->needs_input_grad(0);
    add_bias_gradient(dy, row);
    if (row.collective == RowOutputCollective::f_star)
      verify_equal(dy, "a row-parallel layer's output gradient", row.step);
    if (!needs_rows(row, needs_dx)) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const Tensor x = input_of(context->get_saved_variables()[0], row);
    const bool is_sharded = row.collective == RowOutputCollective::g_star && row.step.group.size() > 1;
    const Tensor dx =
        is_sharded ? backward_sharded(dy, x, row, needs_dx) : backward_unsharded(dy, x, row, needs_dx);
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

void check_input(const Tensor& x, const LinearParameters& w, const Step& step) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(0) == step.sequence.size() && x.size(2) == w.weight->size(1),
                    w.weight->name, ": input must be [", step.sequence.size(), ", b, ", w.weight->size(1),
                    "]; got ", x.sizes(), " [SW0457]");
}

Tensor product(const Tensor& x, const LinearParameters& w, const Step& step, RowOutputCollective collective,
               const RowOptions& options) {
  check_input(x, w, step);
  Row row{w, step, collective, options};
  const Tensor input = x.contiguous();
  const std::optional<Tensor> bias = leaf_of(w.bias);
  if (!needs_gradient(input, w.weight->value, bias.value_or(Tensor()))) return forward_product(input, row);
  check_trainable(*w.weight);
  return RowProduct::apply(input, w.weight->value, bias, std::move(row));
}

PendingReduction pending_product(const Tensor& x, const LinearParameters& w, const Step& step,
                                 RowOutputCollective collective) {
  check_input(x, w, step);
  const at::NoGradGuard no_grad;
  return {Placed<Partial>(partial_product(x.contiguous(), {w, step, collective, {}})), w.bias};
}

}  // namespace

template <>
Placed<Invariant> row_product<Invariant>(const Placed<Sharded<kFeature>>& x, const LinearParameters& w,
                                         const Step& step, const RowOptions& options) {
  return Placed<Invariant>(product(x.local(), w, step, RowOutputCollective::f_star, options));
}

template <>
Placed<Sharded<kSequence>> row_product<Sharded<kSequence>>(const Placed<Sharded<kFeature>>& x,
                                                           const LinearParameters& w, const Step& step,
                                                           const RowOptions& options) {
  return Placed<Sharded<kSequence>>(product(x.local(), w, step, RowOutputCollective::g_star, options));
}

template <>
Placed<Partial> row_product<Partial>(const Placed<Sharded<kFeature>>& x, const LinearParameters& w,
                                     const Step& step, const RowOptions& options) {
  return Placed<Partial>(product(x.local(), w, step, RowOutputCollective::none, options));
}

template <>
PendingReduction pending_row_product<Invariant>(const Placed<Sharded<kFeature>>& x, const LinearParameters& w,
                                                const Step& step) {
  return pending_product(x.local(), w, step, RowOutputCollective::f_star);
}

template <>
PendingReduction pending_row_product<Sharded<kSequence>>(const Placed<Sharded<kFeature>>& x,
                                                         const LinearParameters& w, const Step& step) {
  return pending_product(x.local(), w, step, RowOutputCollective::g_star);
}

// By value, so that the partial sum's memory is released once it is reduced.
// NOLINTBEGIN(performance-unnecessary-value-param)
template <>
Placed<Invariant> reduce<Invariant>(PendingReduction pending, const Step& step) {
  return Placed<Invariant>(with_bias(all_reduced(pending.y.local(), step), pending.bias));
}

template <>
Placed<Sharded<kSequence>> reduce<Sharded<kSequence>>(PendingReduction pending, const Step& step) {
  return Placed<Sharded<kSequence>>(with_bias(reduce_scatter_rows(pending.y.local(), step), pending.bias));
}
// NOLINTEND(performance-unnecessary-value-param)

}  // namespace shardwise::parallel
