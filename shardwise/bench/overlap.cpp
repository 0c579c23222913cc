#include "shardwise/bench/overlap.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include "shardwise/bench/synchronizer.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/product.h"
#include "shardwise/parallel/column_product.h"
#include "shardwise/parallel/gathered_rows.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::bench {
namespace {

using at::Tensor;
using parallel::kFeature, parallel::kSequence, parallel::Placed, parallel::Sharded;

/// The weights of both layers, this rank's shards of their inputs and output gradients, and the full tensor
/// of the sequence-sharded one. One sequence: [s, 1, h].
struct Layers {
  parallel::Step on, off;
  parallel::ParameterPtr up, down;
  Tensor full, shard_s, shard_f;

  Layers(const OverlapBench& bench, const comm::Group& group) : on(group, bench.rows), off(on) {
    off.overlap = parallel::Overlap::off;
    const auto ffn = base::Split::even("ffn", bench.ffn, group.size());
    const auto init = parallel::Init::normal(0.02);
    const auto make = [&](const char* name, std::vector<int64_t> shape, const base::ShardRule& rule) {
      auto made = parallel::make_parameter(name, std::move(shape), rule, init, group, bench.dtype);
      parallel::initialize_(*made, kernels::RandomKey::of(1), group);
      parallel::zero_grad_(*made);
      return made;
    };
    up = make("up", {bench.ffn, bench.hidden}, base::ShardRule::sharded(/*dim=*/0, ffn));
    down = make("down", {bench.hidden, bench.ffn}, base::ShardRule::sharded(/*dim=*/1, ffn));
    full = at::randn({bench.rows, 1, bench.hidden}).to(bench.dtype);
    const base::Range rows = on.local_sequence();
    shard_s = group.empty({rows.size(), 1, bench.hidden}, bench.dtype);
    shard_s.copy_(full.narrow(kSequence, rows.begin, rows.size()));
    shard_f = at::randn({bench.rows, 1, ffn.range(group.rank()).size()}).to(bench.dtype);
  }

  Tensor column(const Tensor& x, const parallel::Step& step) const {
    return parallel::column_product(Placed<Sharded<kSequence>>(x), {up, nullptr}, step).local();
  }
  Tensor row(const Tensor& x, const parallel::Step& step) const {
    return parallel::row_product<Sharded<kSequence>>(Placed<Sharded<kFeature>>(x), {down, nullptr}, step)
        .local();
  }
};

/// Returns a·b in new memory, as the layers do.
Tensor product(const Tensor& a, const Tensor& b) {
  Tensor y = at::empty({a.size(0), b.size(1)}, a.options());
  kernels::product_out(y, a, b);
  return y;
}

/// Returns a call of one layer's GEMMs on this rank: y = x Wᵀ and, with `dy`, dX = dY W and dW += dYᵀ x.
std::function<void()> gemm(const parallel::ParameterPtr& w, const Tensor& x, const Tensor& dy) {
  return [w, x = parallel::as_matrix(x), dy = dy.defined() ? parallel::as_matrix(dy) : dy] {
    const at::NoGradGuard no_grad;
    product(x, w->value.t());
    if (!dy.defined()) return;
    product(dy, w->value);
    kernels::add_weight_grad_(w->main_grad, dy, x);
  };
}

using LayerForward = Tensor (Layers::*)(const Tensor&, const parallel::Step&) const;

/// Returns a call of the layer with its collectives: forward alone if `dy` is undefined, else with backward.
std::function<void()> layer(const Layers& layers, LayerForward forward, const parallel::Step& step,
                            const Tensor& x, const Tensor& dy) {
  if (!dy.defined()) {
    return [&layers, forward, &step, x] {
      const at::NoGradGuard no_grad;
      (layers.*forward)(x, step);
    };
  }
  return [&layers, forward, &step, x = x.detach().requires_grad_(), dy] {
    (layers.*forward)(x, step).backward(dy);
    x.mutable_grad().reset();
  };
}

struct LayerCase {
  std::string name;
  LayerForward forward;
  Tensor x, dy;  // this rank's shards; undefined dy: forward alone
  std::function<void()> gemm;
};

std::vector<LayerCase> cases_of(const Layers& l) {
  const Tensor none;
  return {
      {"AllGather+GEMM", &Layers::column, l.shard_s, none, gemm(l.up, l.full, none)},
      {"AllGather+GEMM and backward", &Layers::column, l.shard_s, l.shard_f, gemm(l.up, l.full, l.shard_f)},
      {"GEMM+ReduceScatter", &Layers::row, l.shard_f, none, gemm(l.down, l.shard_f, none)},
      {"GEMM+ReduceScatter and backward", &Layers::row, l.shard_f, l.shard_s,
       gemm(l.down, l.shard_f, l.full)}};
}

}  // namespace

std::vector<OverlapMeasured> measure_overlap(const OverlapBench& bench, const comm::Group& group,
                                             const OnLayerProgress& on_progress) {
  const Layers layers(bench, group);
  Synchronizer synchronizer = synchronizer_of(group);
  std::vector<OverlapMeasured> measured;
  for (const auto& [name, forward, x, dy, gemm] : cases_of(layers)) {
    if (group.rank() == 0) {
      synchronizer.after_repetition = [&, name = name](int64_t done, int64_t repetitions) {
        on_progress(name, done, repetitions);
      };
    }
    const std::vector<Measured> all = measure({{"on", layer(layers, forward, layers.on, x, dy), {}},
                                               {"off", layer(layers, forward, layers.off, x, dy), {}},
                                               {"gemm", gemm, {}}},
                                              CacheState::warm, bench.seconds, synchronizer);
    measured.push_back({name, all[0], all[1], all[2]});
  }
  return measured;
}

}  // namespace shardwise::bench
