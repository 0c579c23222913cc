#include "shardwise/plan/routed_experts.h"

#include <cmath>

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

int64_t rounded(double value) {
  return std::llround(value);
}

/// A product of `rows` rows [in] with weights of `weights` elements that are read, to [out].
Operation routed_product(const char* name, double rows, int64_t in, int64_t out, double weights,
                         int64_t element_bytes) {
  const auto features = static_cast<double>(in + out);
  Operation operation{name, Operation::Kind::product, {}, {}, {}, {}};
  operation.weight_elements = rounded(weights);
  operation.forward = {2 * rows * static_cast<double>(in) * static_cast<double>(out),
                       (rounded(rows * features) + operation.weight_elements) * element_bytes};
  return operation;
}

Operation routed_elementwise(const char* name, double elements, int64_t element_bytes) {
  return {name, Operation::Kind::elementwise, {0, rounded(elements) * element_bytes}, {}, {}, {}};
}

}  // namespace

double expected_chosen(const config::Experts& experts, int64_t held, int64_t rows) {
  const double missed = 1 - static_cast<double>(experts.per_token) / static_cast<double>(experts.count);
  return static_cast<double>(held) * (1 - std::pow(missed, static_cast<double>(rows)));
}

RoutedExperts routed_experts(const config::Config& config, const ExpertRanks& ranks, int64_t rows) {
  const config::Experts& all = *config.experts;
  const int64_t group = config.quantization ? std::max<int64_t>(config.quantization->group_size, 1) : 1;
  const base::Split features = base::Split::even("expert ffn", all.intermediate_size,
                                                 static_cast<int>(ranks.ranks_of_expert()), group);
  const int64_t held = parts_of(all.count, ranks.ep), shared_rows = rows * ranks.replicas();
  const double choices = static_cast<double>(shared_rows * all.per_token),
               sent = static_cast<double>(rows * all.per_token) / static_cast<double>(ranks.tp);
  const auto ep = static_cast<double>(ranks.ep);
  return {.held = held,
          .features = features.range(0).size(),
          .read = expected_chosen(all, held, shared_rows),
          .rows = choices * static_cast<double>(held) / static_cast<double>(all.count),
          .sent_rows = ranks.replicas() > 1 ? sent * (ep - 1) / ep : 0};
}

Operations routed_operations(const config::Config& config, const RoutedExperts& experts, int64_t rows,
                             int64_t element_bytes) {
  const int64_t h = config.hidden_size, f = experts.features, count = config.experts->count;
  const int64_t accumulator = std::max<int64_t>(element_bytes, 4);
  const auto token_rows = static_cast<double>(rows), hidden = experts.rows * static_cast<double>(h),
             inner = experts.rows * static_cast<double>(f);
  const double matrix = experts.read * static_cast<double>(f) * static_cast<double>(h);
  return {routed_product("router", token_rows, h, count, static_cast<double>(h * count), element_bytes),
          routed_elementwise("routing", 3 * token_rows * static_cast<double>(count), accumulator),
          routed_elementwise("dispatch", 2 * hidden, element_bytes),
          routed_product("experts_gate_up", experts.rows, h, 2 * f, 2 * matrix, element_bytes),
          routed_elementwise("experts_swiglu", 3 * inner, element_bytes),
          routed_product("experts_down", experts.rows, f, h, matrix, element_bytes),
          routed_elementwise("combine", 2 * hidden, element_bytes)};
}

}  // namespace shardwise::plan
