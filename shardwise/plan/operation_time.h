// The time of an operation on a machine: the longer of its arithmetic and its memory traffic.
//
// Source: Williams et al. 2009, the roofline model, with rates that grow with the size.
#pragma once
#include "shardwise/plan/machine.h"
#include "shardwise/plan/operations.h"

namespace shardwise::plan {

/// The time of operations on elements of one size.
class OperationTime {
 public:
  OperationTime(const Machine& machine, int64_t element_bytes)
      : machine_(machine), rates_(machine.rates(element_bytes)), element_bytes_(element_bytes) {}

  /// Returns the seconds of the forward pass of training.
  double forward(const Operation& operation) const;
  /// Returns the seconds of the gradient of the input.
  double input_gradient(const Operation& operation) const;
  /// Returns the seconds of the gradient of the weight.
  double weight_gradient(const Operation& operation) const;
  /// Returns the seconds of both gradients.
  double gradients(const Operation& operation) const;
  /// Returns the seconds of both gradients, with what backward computes again, at the rate of the forward.
  double backward(const Operation& operation) const;
  /// Returns the seconds of a forward pass of inference that moves `bytes`. `weight_bits`: of a product's
  /// weight, as it is stored.
  double inference(const Operation& operation, int64_t bytes, int64_t weight_bits) const;
  /// Returns the seconds of attention of new tokens to a cache of `bytes`, which takes `flop`.
  double cached_attention(double flop, int64_t bytes) const;

 private:
  double seconds(const Operation& operation, const Pass& pass, const Rate& rate) const;

  const Machine& machine_;
  const OperationRates& rates_;
  int64_t element_bytes_;
};

}  // namespace shardwise::plan
