// The time of an operation on a machine: the longer of its arithmetic and its memory traffic.
//
// Source: Williams et al. 2009, the roofline model, with rates that grow with the size.
#pragma once
#include "shardwise/plan/machine.h"
#include "shardwise/plan/operations.h"

namespace shardwise::plan {

/// A weight as a forward of inference reads it.
struct ReadWeight {
  int64_t bits = 0;         // of an element, as it is stored
  double memory_share = 1;  // of its bytes; a cache holds the others (inference_rates.h)
};

/// Attention of a new token of each text to its cache.
struct CachedAttention {
  double flop = 0;          // of the products of queries with keys, and of scores with values
  double elements = 0;      // of keys and values, or latents, that are read
  double queries = 1;       // heads that read each of them
  int64_t bytes = 0;        // of the elements
  double memory_share = 1;  // of the bytes; a cache of the processor holds the others
};

/// The time of operations on elements of one size.
class OperationTime {
 public:
  /// `machine`: outlives this object; `element_bytes`: of the operands.
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
  /// Returns the seconds of a forward pass of inference that moves `bytes`. `weight`: of a product.
  double inference(const Operation& operation, int64_t bytes, const ReadWeight& weight = {}) const;
  /// Returns its seconds.
  double cached_attention(const CachedAttention& attention) const;

 private:
  double seconds(const Operation& operation, const Pass& pass, const Rate& rate) const;

  const Machine& machine_;
  const OperationRates& rates_;
  int64_t element_bytes_;
};

}  // namespace shardwise::plan
