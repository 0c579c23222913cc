// Calls of kernels with one argument at a time on another device.
#pragma once
#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/error_text.h"

namespace shardwise::testing {

using Tensors = std::vector<at::Tensor>;

/// A call of a kernel, named as its errors name it.
struct KernelCall {
  std::string name;
  Tensors arguments;
  std::function<void(Tensors& arguments)> call;
};

/// Checks that the call succeeds, and that it is refused with any one argument on the meta device.
inline void expect_refused_on_other_device(const KernelCall& kernel) {
  SCOPED_TRACE(kernel.name);
  Tensors on_cpu = kernel.arguments;
  EXPECT_NO_THROW(kernel.call(on_cpu));
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    Tensors arguments = kernel.arguments;
    arguments[i] = at::empty(arguments[i].sizes(), arguments[i].options().device(at::kMeta));
    EXPECT_EQ(test::error_text([&] { kernel.call(arguments); }),
              kernel.name + ": tensors must be on the CPU; got meta; copy them there with .cpu()")
        << "argument " << i;
  }
}

}  // namespace shardwise::testing
