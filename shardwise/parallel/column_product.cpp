#include "shardwise/parallel/column_product.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "shardwise/base/profile.h"
#include "shardwise/comm/work.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/parallel/blockwise_reduce_scatter.h"
#include "shardwise/parallel/conjugate.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/verify.h"
#include "shardwise/parallel/weight_product.h"

namespace shardwise::parallel {

using at::Tensor;

namespace {

/// The conjugate collective of the input's placement.
enum class ColumnInputCollective { f, g, none };

struct Column {
  LinearParameters w;
  Step step;
  ColumnInputCollective collective;
  std::optional<GatheredRows> rows = {};  // g: if on shared memory, or if the gathered input is saved
};

void add_bias_(Tensor& y, const LinearParameters& w) {
  if (w.bias) y.add_(w.bias->value.detach());
}

Tensor multiply(const Tensor& x, const Column& column) {
  const Parameter& weight = *column.w.weight;
  Tensor y = kernels::empty({x.size(0), x.size(1), weight.size(0)}, x);
  Tensor y_matrix = as_matrix(y);
  weight_product_out(y_matrix, as_matrix(x), weight);
  return y;
}

Tensor multiply_rows(const GatheredRows& rows, const Tensor& x_shard, const Column& column) {
  const Parameter& weight = *column.w.weight;
  Tensor y = at::empty({column.step.sequence.size(), x_shard.size(1), weight.size(0)}, x_shard.options());
  for (int i = 0; i < rows.ranks(); ++i) {
    Tensor y_rows = rows.matrix_of(y, rows.chunk_order(i));
    weight_product_out(y_rows, rows.matrix(rows.chunk_order(i)), weight);
  }
  return y;
}

Tensor forward_product(const Tensor& x, Column& column) {
  if (column.collective == ColumnInputCollective::f)
    verify_equal(x, "a column-parallel layer's input", column.step);
  if (column.collective == ColumnInputCollective::g) {
    column.rows = GatheredRows::gather(x, column.step);
    verify_equal(*column.rows, "a column-parallel layer's gathered input", column.step);
  }
  Tensor y = column.rows ? multiply_rows(*column.rows, x, column) : multiply(x, column);
  add_bias_(y, column.w);
  return y;
}

/// Returns the input to save for the weight gradient: undefined if `column` stores the gathered rows or W is
/// frozen, else the local `x`, which backward gathers again if it is a shard.
Tensor saved_input(const Tensor& x, Column& column) {
  const bool is_gathered = column.rows && column.rows->full().defined();
  const bool is_frozen = column.w.weight->is_frozen();
  const bool saves_gathered =
      is_gathered && !is_frozen && column.step.save_for_backward == SaveForBackward::gathered;
  if (is_frozen || (is_gathered && !saves_gathered)) column.rows.reset();
  return is_frozen || saves_gathered ? Tensor() : x;
}

at::DimVector input_sizes(const Tensor& dy, const Column& column) {
  return {dy.size(0), dy.size(1), column.w.weight->size(1)};
}

/// Computes dX = dY W, [s, b, h], a Partial, in the symmetric heap.
Tensor input_gradient_partial(const Tensor& dy, const Column& column) {
  Tensor dx = column.step.group.empty(input_sizes(dy, column), dy.scalar_type());
  Tensor dx_matrix = as_matrix(dx);
  kernels::product_out(dx_matrix, as_matrix(dy), column.w.weight->value.detach());
  return dx;
}

/// The input's gradient: the constructor computes the Partial dX = dY W and starts its reduction, which can
/// overlap with the weight gradient; `wait` completes it.
class InputGradient {
 public:
  InputGradient(const Tensor& dy, const Column& column) : column_(column) {
    if (column.collective != ColumnInputCollective::g) {
      dx_ = input_gradient_partial(dy, column);
      if (overlaps_weight_gradient(column)) all_reduce_ = column.step.group.all_reduce_async_(dx_);
      return;
    }
    reduce_scatter_.emplace(input_sizes(dy, column), dy.scalar_type(), column.step);
    reduce_scatter_->compute([&](Tensor& dx_rows, int rank) {
      kernels::product_out(dx_rows, rows_matrix(dy, column.step.sequence.range(rank)),
                           column.w.weight->value.detach());
    });
  }

  Tensor wait() {
    if (reduce_scatter_) return reduce_scatter_->wait();
    if (column_.collective != ColumnInputCollective::f) return dx_;
    if (all_reduce_) {
      all_reduce_->wait();
      return dx_;
    }
    column_.step.group.all_reduce_(dx_);
    return dx_;
  }

 private:
  /// True if there is a weight gradient to overlap with.
  static bool overlaps_weight_gradient(const Column& column) {
    return column.collective == ColumnInputCollective::f && column.step.overlap == Overlap::on &&
           !column.w.weight->is_frozen();
  }

  const Column& column_;
  Tensor dx_;                                             // I, R
  std::unique_ptr<comm::Work> all_reduce_;                // I: in flight
  std::optional<BlockwiseReduceScatter> reduce_scatter_;  // S
};

/// Gathers a sharded input again for the weight gradient, or returns its saved rows; nullopt if it is not
/// sharded or W is frozen.
std::optional<GatheredRows> regathered_rows(const Tensor& x, Column& column) {
  if (column.collective != ColumnInputCollective::g || column.w.weight->is_frozen()) return std::nullopt;
  if (!column.rows) return GatheredRows::gather(x, column.step);
  column.rows->record_peer_read(column.step.group);
  return std::exchange(column.rows, std::nullopt);  // the node outlives its backward
}

void add_gathered_weight_gradient(Tensor& gradient, const Tensor& dy, const GatheredRows& rows) {
  for (const base::Range& ranks : rows.runs(dy.size(1)))
    kernels::add_weight_grad_(gradient, rows.matrix_of(dy, ranks), rows.matrix(ranks));
}

/// Adds the weight and bias gradients. The input is in `rows` if it was gathered, else in `x`.
void add_gradients(const Tensor& dy, const Tensor& x, const std::optional<GatheredRows>& rows,
                   const Column& column) {
  const auto& [weight, bias] = column.w;
  if (Tensor gradient = bias ? bias->main_grad_if_trainable() : Tensor(); gradient.defined())
    kernels::add_bias_grad_(gradient, as_matrix(dy));
  if (weight->is_frozen()) return;
  Tensor gradient = weight->main_grad_if_trainable();
  if (rows) return add_gathered_weight_gradient(gradient, dy, *rows);
  kernels::add_weight_grad_(gradient, as_matrix(dy), as_matrix(x));
}

struct ColumnProduct : torch::autograd::Function<ColumnProduct> {
  /// Weight and bias are parameters only so that autograd sees them; the code uses those in `column`.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*weight*/,
                        const std::optional<Tensor>& /*bias*/, Column column) {
    Tensor y = forward_product(x, column);
    context->save_for_backward({saved_input(x, column)});
    save_state(context, std::move(column));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& column = saved_state<Column>(context);
    base::enter_part(column.w.weight->name);
    const Tensor dy = gradients[0].contiguous(), x = context->get_saved_variables()[0];
    std::optional<GatheredRows> rows = regathered_rows(x, column);  // overlaps with the next product
    if (rows) verify_equal(*rows, "a column-parallel layer's input, gathered again", column.step);
    std::optional<InputGradient> input_gradient;
    if (context->needs_input_grad(0)) input_gradient.emplace(dy, column);
    add_gradients(dy, x, rows, column);
    rows.reset();
    const Tensor dx = input_gradient ? input_gradient->wait() : Tensor();
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

Placed<Sharded<kFeature>> product(const Tensor& x, const LinearParameters& w, const Step& step,
                                  ColumnInputCollective collective) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == w.weight->size(1), w.weight->name, ": input must be [s, b, ",
                    w.weight->size(1), "]; got ", x.sizes(), " [SW0452]");
  Column column{w, step, collective};
  const Tensor input = x.contiguous();
  const std::optional<Tensor> bias = leaf_of(w.bias);
  if (!needs_gradient(input, w.weight->value, bias.value_or(Tensor()))) {
    return Placed<Sharded<kFeature>>(forward_product(input, column));
  }
  check_trainable(*w.weight);
  return Placed<Sharded<kFeature>>(ColumnProduct::apply(input, w.weight->value, bias, std::move(column)));
}

}  // namespace

Placed<Sharded<kFeature>> column_product(const Placed<Invariant>& x, const LinearParameters& w,
                                         const Step& step) {
  return product(x.local(), w, step, ColumnInputCollective::f);
}

Placed<Sharded<kFeature>> column_product(const Placed<Sharded<kSequence>>& x_shard_s,
                                         const LinearParameters& w, const Step& step) {
  return product(x_shard_s.local(), w, step, ColumnInputCollective::g);
}

Placed<Sharded<kFeature>> column_product(const Placed<Replicated>& x, const LinearParameters& w,
                                         const Step& step) {
  return product(x.local(), w, step, ColumnInputCollective::none);
}

}  // namespace shardwise::parallel
