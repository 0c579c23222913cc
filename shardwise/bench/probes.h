// What the threads of a rank reach at best, to compare kernels with: reading memory, and arithmetic in
// registers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "shardwise/parallel/parameter.h"

namespace shardwise::bench {

/// Reads the values of `weight` once, scales included. Returns a sum of them, which makes the reads
/// necessary.
uint64_t read_once(const parallel::Parameter& weight);

/// Arithmetic without memory, in all threads.
class ArithmeticProbe {
 public:
  /// Chooses the fastest instruction for products of `dtype`, fp32 or bf16, that our loops or torch's use:
  /// tdpbf16ps for bf16 with AMX, vdpbf16ps with AVX512-BF16, else a multiply-add of fp32.
  explicit ArithmeticProbe(at::ScalarType dtype);

  /// Returns the instruction, for output: "vdpbf16ps" or "fp32 multiply-add, avx512".
  const std::string& name() const { return name_; }
  /// Returns the multiplications and additions of one run, over all threads.
  int64_t operations() const;
  void run() const;

 private:
  std::string name_;
  float (*loop_)(int64_t iterations);
  int64_t operations_per_iteration_;
};

}  // namespace shardwise::bench
