// Graphs of the fake device: recorded once, replayed on what the memory has then.
#include "tests/support/fake_device/graph.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/emulator/fake_device/on_device.h"
#include "tests/support/fake_device/counts.h"

namespace shardwise::fake_device {
namespace {

using at::Tensor;

at::Tensor numbers(float first) {
  return (at::arange(8, at::kFloat) + first).view({2, 4});
}

/// Kernels and operations of ATen: new results, results in place, and temporaries that are freed meanwhile.
Tensor queue_work(const Tensor& x, const Tensor& weight, const Tensor& sum_) {
  const Tensor y = at::mm(queue_rms_norm(x, weight) + 1, x.t());
  sum_.add_(y);
  return queue_rms_norm((y * 2).contiguous(), at::ones({2}, on_device()) * 3);
}

TEST(FakeDeviceGraph, ReplaysKernelsAndOperationsInOrder) {
  const Tensor x = numbers(1).to(on_device().device()), weight = at::full({4}, 2.0f, on_device()),
               sum = at::zeros({2, 2}, on_device());
  Tensor y;
  Graph graph([&] { y = queue_work(x, weight, sum); });
  EXPECT_TRUE(sum.cpu().equal(at::zeros({2, 2}))) << "nothing runs before a replay";
  Tensor expected_sum = at::zeros({2, 2}, on_device());
  for (const float first : {1.0f, -3.0f, 40.0f}) {
    x.copy_(numbers(first));
    at::full({1 << 10}, NAN, on_device());  // takes memory that the graph must not have given back
    graph.replay();
    EXPECT_TRUE(y.cpu().equal(queue_work(x, weight, expected_sum).cpu())) << first;
    EXPECT_TRUE(sum.cpu().equal(expected_sum.cpu())) << first;
  }
}

TEST(FakeDeviceGraph, CountsWhatItReplays) {
  const Tensor x = numbers(1).to(on_device().device()), weight = at::ones({4}, on_device());
  reset_counts();
  Tensor y;
  const Graph graph([&] { y = queue_rms_norm(x, weight); });
  EXPECT_EQ(counts().launches, 0);
  graph.replay();
  graph.replay();
  EXPECT_EQ(counts().launches, 2);
  EXPECT_EQ(counts().captures, 1);
  EXPECT_EQ(counts().replays, 2);
}

/// Returns what a captured call is refused with. Afterwards the device works.
std::string refusal(const std::function<void(const Tensor&)>& call) {
  const Tensor x = numbers(1).to(on_device().device());
  std::string what = "nothing";
  try {
    const Graph graph([&] { call(x); });
  } catch (const std::exception& error) {
    what = error.what();
  }
  EXPECT_TRUE((x + 1).cpu().equal(numbers(2)));
  return what.substr(0, what.find('\n'));
}

TEST(FakeDeviceGraph, RefusesWaitsAndCopiesFromTheHost) {
  const std::string waits = "the host waits for the device while a graph is captured";
  EXPECT_EQ(refusal([](const Tensor& x) { x.cpu(); }), waits);
  EXPECT_EQ(refusal([](const Tensor& x) { x.sum().item(); }), waits);
  EXPECT_EQ(refusal([](const Tensor& x) { x.copy_(numbers(2)); }), waits);
  EXPECT_EQ(refusal([](const Tensor& x) { x.copy_(numbers(2), /*non_blocking=*/true); }),
            "memory of the host is copied while a graph is captured: the graph would read it again");
  EXPECT_EQ(refusal([](const Tensor&) { cudaDeviceSynchronize(); }),
            "capture: the host waits for the device meanwhile");
  EXPECT_EQ(refusal([](const Tensor&) { cudaStreamSynchronize(stream()); }),
            "capture: the host waits for the device meanwhile");
}

// Temporaries of the graph live as long as it does.
TEST(FakeDeviceGraph, GivesItsMemoryBackAtItsEnd) {
  const auto used = [] {
    const Tensor block = at::zeros({1}, on_device());
    return block.data_ptr();
  };
  const Tensor x = numbers(1).to(on_device().device());
  (x + 1).cpu();
  x.cpu();  // by then what was released is free
  const void* const before = used();
  {
    const Graph graph([&] { (x + 1) * 2; });
    x.cpu();
    EXPECT_NE(used(), before);
  }
  x.cpu();
  EXPECT_EQ(used(), before);
}

}  // namespace
}  // namespace shardwise::fake_device
