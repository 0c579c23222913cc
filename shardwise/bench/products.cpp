#include "shardwise/bench/products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include "shardwise/bench/probes.h"
#include "shardwise/bench/synchronizer.h"
#include "shardwise/parallel/weight_product.h"

namespace shardwise::bench {
namespace {

using at::Tensor;
using parallel::ParameterPtr;

ParameterPtr random_weight(const WeightShape& shape, const WeightFormat& format, const comm::Group& group) {
  const std::vector<int64_t> sizes{shape.outputs, shape.inputs};
  const auto rule = base::ShardRule::replicated();
  const auto init = parallel::Init::normal(0.02);
  const auto packed = format.quantized ? format.quantized
                                       : quant::inference_format(format.dtype, shape.outputs, shape.inputs);
  const ParameterPtr weight =
      packed ? parallel::make_packed_parameter(shape.name, sizes, rule, init, *packed, group)
             : parallel::make_parameter(shape.name, sizes, rule, init, group, format.dtype);
  parallel::initialize_(*weight, kernels::RandomKey::of(1), group);
  return weight;
}

ParameterPtr copy_of(const parallel::Parameter& weight) {
  auto copy = std::make_shared<parallel::Parameter>(weight);
  if (weight.panels) {
    copy->panels = std::make_shared<quant::Panels>(*weight.panels);
    copy->panels->data = weight.panels->data.clone();
  } else {
    copy->value = weight.value.detach().clone();
  }
  return copy;
}

/// Equal weights that calls use in turn.
class Weights {
 public:
  Weights(const ParameterPtr& first, int64_t bytes) : weights_{first} {
    while (std::ssize(weights_) * first->bytes() < bytes) weights_.push_back(copy_of(*first));
  }
  const parallel::Parameter& next() { return *weights_[next_++ % weights_.size()]; }

 private:
  std::vector<ParameterPtr> weights_;
  size_t next_ = 0;
};

WeightMeasured measure_weight(const WeightShape& shape, const WeightFormat& format, const ProductBench& bench,
                              const comm::Group& group, const Synchronizer& synchronizer) {
  Weights weights(random_weight(shape, format, group), bench.bytes_in_turn);
  const ArithmeticProbe arithmetic(format.dtype);
  WeightMeasured result;
  result.shape = shape;
  result.format = format.name;
  result.bytes = weights.next().bytes();
  result.arithmetic_operations = arithmetic.operations();
  result.instruction = arithmetic.name();
  std::vector<TimedCall> calls{{"read", [&] { read_once(weights.next()); }, {}},
                               {"arithmetic", [&] { arithmetic.run(); }, {}}};
  for (const int64_t rows : bench.rows) {
    const Tensor x = at::randn({rows, shape.inputs}).to(format.dtype);
    result.rows.push_back({rows, parallel::product_name(x, weights.next()), /*product=*/{}});
    Tensor y = at::empty({rows, shape.outputs}, x.options());
    calls.push_back({std::to_string(rows),
                     [&weights, x, y]() mutable { parallel::weight_product_out(y, x, weights.next()); },
                     /*rewrite=*/{}});
  }
  const std::vector<Measured> times = measure(calls, CacheState::warm, bench.seconds, synchronizer);
  result.read = times[0];
  result.arithmetic = times[1];
  for (size_t i = 0; i < result.rows.size(); ++i) result.rows[i].product = times[2 + i];
  return result;
}

}  // namespace

std::vector<WeightMeasured> measure_products(const ProductBench& bench, const comm::Group& group,
                                             const OnWeightProgress& on_progress) {
  Synchronizer synchronizer = synchronizer_of(group);
  std::vector<WeightMeasured> measured;
  if (group.rank() == 0) {
    synchronizer.after_repetition = [&](int64_t done, int64_t repetitions) {
      on_progress(measured.size(), done, repetitions);
    };
  }
  for (const WeightShape& shape : bench.shapes) {
    for (const WeightFormat& format : bench.formats)
      measured.push_back(measure_weight(shape, format, bench, group, synchronizer));
  }
  return measured;
}

}  // namespace shardwise::bench
