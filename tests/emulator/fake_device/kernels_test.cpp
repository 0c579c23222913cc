// The project's CUDA kernels on tensors of the device: they are asynchronous, and ATen waits for them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <string>

#include "tests/emulator/fake_device/on_device.h"
#include "tests/support/emulator/builtins.h"
#include "tests/support/emulator/emulator.h"
#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

using Fallbacks = std::map<std::string, int64_t>;

TEST(FakeDeviceKernels, AreFinishedBeforeAtenReadsTheirResults) {
  const at::Tensor x = at::tensor({3.0f, -3.0f, 2.0f, 2.0f}).view({2, 2}).to(on_device());
  const at::Tensor weight = at::tensor({10.0f, 20.0f}).to(on_device());
  const at::Tensor y = queue_rms_norm(x, weight);  // [10 -20; 10 20]
  const at::Tensor sum = at::mm(y, y.t());
  const at::Tensor z = queue_rms_norm(sum.mul(0.5f), weight.add(-10));
  EXPECT_TRUE(at::equal(sum.cpu(), at::tensor({500.0f, -300.0f, -300.0f, 500.0f}).view({2, 2})));
  const float rms = std::sqrt((250.0f * 250 + 150.0f * 150) / 2);
  const at::Tensor expected = at::tensor({0.0f, -1500 / rms, 0.0f, 2500 / rms}).view({2, 2});
  EXPECT_TRUE(at::allclose(z.cpu(), expected, 1e-6, 0)) << z.cpu() << expected;
}

TEST(FakeDeviceKernels, RunOnlyWhenTheHostWaits) {
  install();
  bool has_run = false;
  emulator::queue(stream(), [&] { has_run = true; });
  const at::Tensor x = at::empty({4}, on_device());
  const at::Tensor part = x.view({2, 2}).t().narrow(0, 1, 1);
  EXPECT_FALSE(has_run);
  { const Open open; }
  EXPECT_TRUE(has_run);
}

TEST(FakeDeviceKernels, MayBeWaitedForWithoutTorch) {
  const at::Tensor x = at::full({2, 8}, 2.0f, on_device()), weight = at::full({8}, 5.0f, on_device());
  const at::Tensor y = queue_rms_norm(x, weight);
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  EXPECT_TRUE(at::equal(y.cpu(), at::full({2, 8}, 5.0f)));
}

TEST(FakeDeviceKernels, FaultsReachWhoWaitsAndCloseTheMemory) {
  const at::Tensor x = at::full({4}, 3.0f, on_device());
  const auto queue_fault = [] {
    emulator::launch(stream(), dim3(1), dim3(32), [] {
      if (emulator::lane() > 0) emulator::barrier();
    });
  };
  queue_fault();
  EXPECT_THROW(const Open open, emulator::Fault);
  EXPECT_EXIT(*x.data_ptr<float>() = 1.0f, ::testing::KilledBySignal(SIGSEGV), "");
  queue_fault();
  EXPECT_THROW(x.add(1), emulator::Fault);
  EXPECT_EQ(x.add(1).sum().item<float>(), 16.0f);
}

TEST(FakeDeviceCounts, SayWhatTheHostWaitsFor) {
  const at::Tensor x = at::ones({2, 2}, on_device()), index = at::zeros({1}, on_device(at::kLong));
  const at::Tensor mask = x > 0;
  at::Tensor host = at::zeros({2, 2});
  const auto reads = [](const std::function<void()>& call) {
    reset_counts();
    call();
    return counts().reads;
  };
  EXPECT_EQ(reads([&] { x.cpu(); }), 1);
  EXPECT_EQ(reads([&] { host.copy_(x); }), 1);
  EXPECT_EQ(reads([&] { x.sum().item(); }), 1);
  EXPECT_EQ(reads([&] { at::equal(x, x); }), 1);
  EXPECT_EQ(reads([&] { at::nonzero(x); }), 1);
  EXPECT_EQ(reads([&] { at::index(x, {{mask}}); }), 1);
  EXPECT_EQ(reads([&] { x.clone().index_put_({mask}, at::zeros({}, on_device())); }), 1);
  EXPECT_EQ(reads([&] { at::index(x, {{index}}); }), 0);
  EXPECT_EQ(reads([&] { x.copy_(host); }), 1);
  EXPECT_EQ(reads([&] { x.copy_(host, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(reads([&] { at::softmax(x.mm(x).add_(1).to(at::kBFloat16), 0); }), 0);
}

TEST(FakeDeviceCounts, NameKernelsAndFallbacks) {
  const at::Tensor x = at::ones({2, 2}, on_device()), weight = at::ones({2}, on_device());
  reset_counts();
  queue_rms_norm(queue_rms_norm(x, weight), weight);
  at::mm(x, x).add_(at::mm(x, x));
  x.view({4}).narrow(0, 1, 2);
  x.clone();
  const Counts counted = counts();
  EXPECT_EQ(counted.launches, 2);
  EXPECT_EQ(counted.reads, 0);
  EXPECT_EQ(counted.fallbacks, (Fallbacks{{"aten::mm", 2}, {"aten::add", 1}, {"aten::copy_", 1}}));
}

TEST(FakeDeviceCounts, NameOneFallbackWhereTheCpuHasOneKernel) {
  const at::Tensor x = at::ones({2, 2}, on_device());
  reset_counts();
  at::native_layer_norm(x, {2}, {}, {}, 1e-5);
  at::silu_backward(x, x);
  EXPECT_EQ(counts().fallbacks, (Fallbacks{{"aten::native_layer_norm", 1}, {"aten::silu_backward", 1}}));
}

}  // namespace
}  // namespace shardwise::fake_device
