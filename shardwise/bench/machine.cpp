#include "shardwise/bench/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "shardwise/bench/inference_rates.h"
#include "shardwise/bench/measurements.h"
#include "shardwise/bench/probes.h"
#include "shardwise/kernels/bf16_product.h"

namespace shardwise::bench {
namespace {

using plan::Rate;

/// Bytes that a rank sends in a collective.
constexpr int64_t kSentBytes[] = {64, 4 << 10, 64 << 10, 1 << 20, 16 << 20};

/// Backward computes the scores again, at the rate of the forward: a quarter of its own work.
RatePoints measure_attention(const Makers& sizes, Measurements& measurements) {
  RatePoints points(2);
  for_each_size(sizes, measurements, [&](const SizedCalls& sized, const std::vector<double>& seconds) {
    const double scores = seconds[0] / 2;
    points.add(0, sized.work[0], seconds[0]);
    points.add(1, sized.work[1], std::max(seconds[1] - scores, seconds[1] / 5));
  });
  return points;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// One rate for all calls together.
Rate measure_elementwise(const Makers& sizes, const std::string& source, Measurements& measurements) {
  RatePoints points(1);
  for_each_size(sizes, measurements, [&](const SizedCalls& sized, const std::vector<double>& seconds) {
    points.add(0, mean(sized.work), mean(seconds));
  });
  return points.take(0, source);
}

/// Returns the rates of a training step's operations.
plan::OperationRates measure_rates(at::ScalarType dtype, const std::string& source,
                                   Measurements& measurements) {
  const ArithmeticProbe probe(dtype);
  const double peak =
      static_cast<double>(probe.operations()) / measurements.of("arithmetic", {[&] { probe.run(); }})[0];
  RatePoints products = measure_sizes(product_calls(dtype), /*calls=*/3, measurements);
  RatePoints attention = measure_attention(attention_calls(dtype), measurements);
  return {.flop_per_second = {peak, source + ": " + probe.name()},
          .product = products.take(0, source),
          .input_gradient = products.take(1, source),
          .weight_gradient = products.take(2, source),
          .attention = attention.take(0, source),
          .attention_backward = attention.take(1, source),
          .elementwise = measure_elementwise(elementwise_calls(dtype), source, measurements)};
}

/// Collectives as the parallel layers use them: shards are read in place.
plan::MeasuredCollectives measure_collectives(const std::string& source, Measurements& measurements) {
  const comm::Group& group = measurements.group();
  const int64_t ranks = group.size();
  RatePoints points(3);
  for (const int64_t sent : kSentBytes) {
    // Each rank sends (t − 1)/t of a tensor in both halves of an all_reduce, and its shard t − 1 times.
    const int64_t shard = std::max<int64_t>(sent / 4 / (ranks - 1), 1), all = ranks * shard;
    const base::Split split = base::Split::even("elements", all, static_cast<int>(ranks));
    at::Tensor x = group.empty({all}, at::kFloat).zero_(), out = group.empty({shard}, at::kFloat),
               local = group.empty({shard}, at::kFloat).zero_();
    const std::vector<double> seconds =
        measurements.of(fmt::format("collectives of {} bytes", sent),
                        {[&] { group.all_reduce_(x); }, [&] { group.share_shard(local, split); },
                         [&] { group.reduce_scatter_out(out, x, split); }});
    const auto half = static_cast<double>(4 * shard * (ranks - 1));
    points.add(0, 2 * half, seconds[0]);
    points.add(1, half, seconds[1]);
    points.add(2, half, seconds[2]);
  }
  return {ranks, points.take(0, source), points.take(1, source), points.take(2, source)};
}

double physical_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

size_t measurement_count(const comm::Group& group) {
  const auto of_dtype = [](at::ScalarType dtype) {
    return 1 + product_calls(dtype).size() + attention_calls(dtype).size() + elementwise_calls(dtype).size();
  };
  return 1 + inference_measurements() + of_dtype(at::kFloat) + of_dtype(at::kBFloat16) +
         (group.size() > 1 ? std::size(kSentBytes) : 0);
}

/// A link of the latency and bandwidth of the smallest and the largest measured collective.
plan::Link link_of(const Rate& reduce_scatter, const std::string& source) {
  const Rate::Point &first = reduce_scatter.points().front(), &last = reduce_scatter.points().back();
  return {{last.per_second, source},
          {1, source},
          {first.work / first.per_second, source},
          {0, source},
          {0, source}};
}

}  // namespace

plan::Machine memory_of_machine(int64_t ranks, const std::string& source) {
  plan::Machine machine;
  machine.name = "this machine";
  machine.devices_per_node = ranks;
  machine.shares_memory = true;
  machine.wgrad_operand_bytes = kernels::weight_gradient_operand_bytes();
  machine.memory_bytes = {physical_memory() / static_cast<double>(ranks), source};
  machine.reserved_bytes = {0, source};
  return machine;
}

plan::Machine measure_machine(double seconds, const std::string& source, const comm::Group& group,
                              const OnMachineProgress& on_progress) {
  Measurements measurements(seconds, group, measurement_count(group), on_progress);
  plan::Machine machine = memory_of_machine(group.size(), source);
  machine.seconds_per_operation = {0, source + ": within the rates"};
  const SizedCalls update = update_calls();
  machine.update_bytes_per_second = {mean(update.work) / mean(measurements.of(update.name, update.calls)),
                                     source};
  machine.inference = measure_inference(source, measurements);
  machine.memory_bytes_per_second = {machine.inference->reading.points().back().per_second, source};
  machine.rates_32_bit = measure_rates(at::kFloat, source, measurements);
  machine.rates_16_bit = measure_rates(at::kBFloat16, source, measurements);
  if (group.size() > 1) {
    machine.collectives = measure_collectives(source, measurements);
    machine.within_node = link_of(machine.collectives->reduce_scatter, source);
  }
  measure_blocks_(machine, measurements);
  return machine;
}

}  // namespace shardwise::bench
