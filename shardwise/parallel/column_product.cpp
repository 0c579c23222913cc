#include "shardwise/parallel/column_product.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "shardwise/base/mutation.h"
#include "shardwise/comm/work.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/product.h"
#include "shardwise/parallel/conjugate.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/partial_rows.h"
#include "shardwise/parallel/verify.h"
#include "shardwise/parallel/weight_product.h"

namespace shardwise::parallel {

using at::Tensor;
using base::Mutation;

namespace {

/// What happens to the input's gradient, a Partial: it is the input placement's crossing backward.
enum class ColumnInputCollective { f, g, none };

struct Column {
  LinearParameters w;
  Step step;
  ColumnInputCollective crossing;
  std::optional<Rows> rows = {};  // g on shared memory, or with the gathered input kept
};

void add_bias_(Tensor& y, const LinearParameters& w) {
  if (w.bias) y.add_(w.bias->value.detach());
}

Tensor multiply(const Tensor& x, const Column& column) {
  const Parameter& weight = *column.w.weight;
  Tensor y = at::empty({x.size(0), x.size(1), weight.size(0)}, x.options());
  Tensor y_matrix = as_matrix(y);
  weight_product_out(y_matrix, as_matrix(x), weight);
  return y;
}

Tensor multiply_rows(const Rows& rows, const Tensor& x_shard, const Column& column) {
  const Parameter& weight = *column.w.weight;
  Tensor y = at::empty({column.step.sequence.size(), x_shard.size(1), weight.size(0)}, x_shard.options());
  for (int i = 0; i < rows.ranks(); ++i) {
    Tensor y_rows = rows.matrix_of(y, rows.nth(i));
    weight_product_out(y_rows, rows.matrix(rows.nth(i)), weight);
  }
  return y;
}

Tensor forward_product(const Tensor& x, Column& column) {
  if (column.crossing == ColumnInputCollective::f)
    verify_equal(x, "a column-parallel layer's input", column.step);
  if (column.crossing == ColumnInputCollective::g) column.rows = Rows::gather(x, column.step);
  Tensor y = column.rows ? multiply_rows(*column.rows, x, column) : multiply(x, column);
  add_bias_(y, column.w);
  return y;
}

/// The weight gradient alone needs the input again: the gathered one where it is kept, else the own shard, of
/// which the peers' are gathered again or read again in place.
Tensor kept_input(const Tensor& x, Column& column) {
  const bool is_gathered = column.rows && column.rows->whole().defined();
  const bool is_frozen = column.w.weight->is_frozen();
  const bool keeps_gathered = is_gathered && !is_frozen &&
                              column.step.save_for_backward == SaveForBackward::gathered &&
                              !base::mutated(Mutation::gather_kept_again);
  if (is_frozen || (is_gathered && !keeps_gathered)) column.rows.reset();
  return is_frozen || keeps_gathered ? Tensor() : x;
}

at::DimVector input_sizes(const Tensor& dy, const Column& column) {
  return {dy.size(0), dy.size(1), column.w.weight->size(1)};
}

/// dX = dY W, [s, b, h], a Partial; where peers can read it.
Tensor input_gradient_partial(const Tensor& dy, const Column& column) {
  Tensor dx = column.step.group.empty(input_sizes(dy, column), dy.scalar_type());
  Tensor dx_matrix = as_matrix(dx);
  kernels::product_out(dx_matrix, as_matrix(dy), column.w.weight->value.detach());
  return dx;
}

/// The input's gradient between its product and what its crossing makes of it, the weight gradient's time.
class InputGradient {
 public:
  InputGradient(const Tensor& dy, const Column& column) : column_(column) {
    if (column.crossing != ColumnInputCollective::g) {
      whole_ = input_gradient_partial(dy, column);
      if (goes_on_beside(column)) begun_ = column.step.group.all_reduce_async_(whole_);
      return;
    }
    rows_.emplace(input_sizes(dy, column), dy.scalar_type(), column.step);
    rows_->make([&](Tensor& dx_rows, int rank) {
      kernels::product_out(dx_rows, rows_matrix(dy, column.step.sequence.range(rank)),
                           column.w.weight->value.detach());
    });
  }

  Tensor crossed() {
    const Step& step = column_.step;
    if (rows_ && base::mutated(Mutation::slice_instead_of_reduce) && step.group.size() > 1) {
      const base::Range own = step.own_sequence();
      return rows_->whole().narrow(kSequence, own.begin, own.size()).clone();
    }
    if (rows_) return rows_->sum();
    if (column_.crossing != ColumnInputCollective::f) return whole_;
    if (begun_) {
      begun_->wait();
      return whole_;
    }
    if (!base::mutated(Mutation::drop_f_backward)) step.group.all_reduce_(whole_);
    if (base::mutated(Mutation::double_f_backward)) step.group.all_reduce_(whole_);
    return whole_;
  }

 private:
  /// There is something to go on beside, and nothing that a fault does to the sum instead.
  static bool goes_on_beside(const Column& column) {
    return column.crossing == ColumnInputCollective::f && column.step.overlap == Overlap::on &&
           !column.w.weight->is_frozen() && !base::mutated(Mutation::drop_f_backward) &&
           !base::mutated(Mutation::double_f_backward);
  }

  const Column& column_;
  Tensor whole_;                       // I, R
  std::unique_ptr<comm::Work> begun_;  // I
  std::optional<PartialRows> rows_;    // S
};

/// All rows of a gathered input, for the weight gradient; nothing where it needs none of them.
std::optional<Rows> rows_again(const Tensor& x, Column& column) {
  if (column.crossing != ColumnInputCollective::g || column.w.weight->is_frozen()) return std::nullopt;
  if (!column.rows) return Rows::gather(x, column.step);
  column.rows->record_peer_read(column.step.group);
  return std::exchange(column.rows, std::nullopt);  // the node itself lives until the loss is dropped
}

void add_gathered_weight_gradient(Tensor& gradient, const Tensor& dy, const Rows& rows) {
  for (int i = 0; i < rows.ranks(); ++i) {
    const int rank = rows.nth(i);
    const int read = base::mutated(Mutation::gather_stale_shard) ? rows.nth(0) : rank;
    kernels::add_weight_grad_(gradient, rows.matrix_of(dy, rank), rows.matrix(read));
  }
}

/// `rows` hold the input where it is gathered, else `x` does.
void add_gradients(const Tensor& dy, const Tensor& x, const std::optional<Rows>& rows, const Column& column) {
  const auto& [weight, bias] = column.w;
  if (Tensor gradient = bias ? bias->main_grad_if_trainable() : Tensor(); gradient.defined())
    kernels::add_bias_grad_(gradient, as_matrix(dy));
  if (weight->is_frozen()) return;
  Tensor gradient = weight->main_grad_if_trainable();
  if (rows) return add_gathered_weight_gradient(gradient, dy, *rows);
  kernels::add_weight_grad_(gradient, as_matrix(dy), as_matrix(x));
}

struct ColumnProduct : torch::autograd::Function<ColumnProduct> {
  /// Weight and bias are named so that autograd sees them; `column` holds them.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*weight*/,
                        const std::optional<Tensor>& /*bias*/, Column column) {
    Tensor y = forward_product(x, column);
    context->save_for_backward({kept_input(x, column)});
    keep(context, std::move(column));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& column = kept<Column>(context);
    const Tensor dy = gradients[0].contiguous(), x = context->get_saved_variables()[0];
    std::optional<Rows> rows = rows_again(x, column);  // may arrive beside the next product
    std::optional<InputGradient> dx_partial;
    if (context->needs_input_grad(0)) dx_partial.emplace(dy, column);
    add_gradients(dy, x, rows, column);
    rows.reset();
    const Tensor dx = dx_partial ? dx_partial->crossed() : Tensor();
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

Placed<Sharded<kFeature>> product(const Tensor& x, const LinearParameters& w, const Step& step,
                                  ColumnInputCollective crossing) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == w.weight->size(1), w.weight->name, ": input must be [s, b, ",
                    w.weight->size(1), "]; got ", x.sizes());
  Column column{w, step, crossing};
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
