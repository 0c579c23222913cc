#include "shardwise/plan/operation_time.h"

#include <algorithm>

namespace shardwise::plan {
namespace {

/// The rates of the passes over an operation.
struct PassRates {
  const Rate &forward, &input_gradient, &weight_gradient;
};

PassRates rates_of(const Operation& operation, const OperationRates& rates) {
  switch (operation.kind) {
    case Operation::Kind::product:
      return {rates.product, rates.input_gradient, rates.weight_gradient};
    case Operation::Kind::attention:
      return {rates.attention, rates.attention_backward, rates.attention_backward};
    case Operation::Kind::elementwise:
      break;
  }
  return {rates.elementwise, rates.elementwise, rates.elementwise};
}

}  // namespace

double OperationTime::seconds(const Operation& operation, const Pass& pass, const Rate& rate) const {
  if (pass.flop == 0 && pass.bytes == 0) return 0;
  const auto bytes = static_cast<double>(pass.bytes);
  const double memory = bytes / machine_.memory_bytes_per_second.value;
  const auto count = static_cast<double>(operation.count);
  const bool computes = operation.kind != Operation::Kind::elementwise;
  return machine_.seconds_per_operation.value +
         (computes ? std::max(memory, count * rate.seconds(pass.flop / count)) : rate.seconds(bytes));
}

double OperationTime::forward(const Operation& operation) const {
  return seconds(operation, operation.forward, rates_of(operation, rates_).forward);
}

double OperationTime::input_gradient(const Operation& operation) const {
  return seconds(operation, operation.input_gradient, rates_of(operation, rates_).input_gradient);
}

double OperationTime::weight_gradient(const Operation& operation) const {
  return seconds(operation, operation.weight_gradient, rates_of(operation, rates_).weight_gradient);
}

double OperationTime::gradients(const Operation& operation) const {
  return input_gradient(operation) + weight_gradient(operation);
}

double OperationTime::backward(const Operation& operation) const {
  return gradients(operation) + seconds(operation, operation.recomputed, rates_of(operation, rates_).forward);
}

double OperationTime::cached_attention(const CachedAttention& a) const {
  const double start = machine_.seconds_per_operation.value;
  if (machine_.inference && element_bytes_ == 2)
    return start + machine_.inference->cached_attention.seconds(a.elements, a.queries, a.memory_share);
  const double read = static_cast<double>(a.bytes) / machine_.memory_bytes_per_second.value;
  return start + std::max(read, rates_.attention.seconds(a.flop));
}

double OperationTime::inference(const Operation& operation, int64_t bytes, const ReadWeight& weight) const {
  const double flop = operation.forward.flop;
  if (machine_.inference && element_bytes_ == 2 && operation.kind == Operation::Kind::product) {
    const double rows = flop / 2 / static_cast<double>(operation.weight_elements);
    return machine_.seconds_per_operation.value +
           machine_.inference->product(flop, rows, weight.bits, weight.memory_share);
  }
  return seconds(operation, {flop, bytes}, rates_of(operation, rates_).forward);
}

}  // namespace shardwise::plan
