// Training on the device: autograd, whose backward pass runs in a thread of the device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>
#include <vector>

#include "tests/emulator/fake_device/on_device.h"

namespace shardwise::fake_device {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Returns leaves: x [12, 64], the norm's weight [64], two products' weights [64, 96] and [96, 64].
Tensors leaves_on(at::Device target) {
  at::manual_seed(3);
  Tensors leaves{at::randn({12, 64}), at::rand({64}) + 0.5, at::randn({64, 96}) / 8, at::randn({96, 64}) / 8};
  for (at::Tensor& leaf : leaves) leaf = leaf.to(target).requires_grad_(true);
  return leaves;
}

at::Tensor loss_of(const at::Tensor& norm, const Tensors& leaves) {
  const at::Tensor product = at::silu(norm.matmul(leaves[2])).matmul(leaves[3]);
  const at::Tensor y = at::layer_norm(product + leaves[0], {64});
  const at::Tensor target = at::arange(12, at::kLong).to(y.device());
  return at::cross_entropy_loss(y, target) + y.pow(2).mean();
}

at::Tensor rms_norm_of(const Tensors& leaves) {
  return leaves[0] * (leaves[0].pow(2).mean(-1, /*keepdim=*/true)).rsqrt() * leaves[1];
}

/// Returns the loss and the leaves' gradients, on the CPU.
Tensors step(const at::Tensor& norm, const Tensors& leaves) {
  const at::Tensor loss = loss_of(norm, leaves);
  loss.backward();
  Tensors results{loss.detach().cpu()};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad().cpu());
  return results;
}

/// RMSNorm by the project's kernels. They are queued by two threads.
struct QueuedRmsNorm : torch::autograd::Function<QueuedRmsNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return queue_rms_norm(x, weight);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors grads) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], dy = grads[0].contiguous();
    const int64_t rows = x.size(0), h = x.size(1);
    const at::Tensor dx = at::empty_like(x), grad = at::zeros({h}, on_device()),
                     partial = at::empty({2, h}, on_device()), rstd = x.pow(2).mean(-1).rsqrt();
    kernels::cuda::rms_norm_backward(
        kernels::cuda::RmsNormBackward<float>{dx.data_ptr<float>(), grad.data_ptr<float>(),
                                              partial.data_ptr<float>(), dy.data_ptr<float>(),
                                              x.data_ptr<float>(), saved[1].data_ptr<float>(),
                                              rstd.data_ptr<float>(), rows, static_cast<int>(h),
                                              /*blocks=*/2},
        stream());
    return {dx, grad};
  }
};

TEST(FakeDeviceNetwork, HasTheBitsOfTheCpuIfAtenComputes) {
  on_device();
  const Tensors there = leaves_on(device()), here = leaves_on(at::kCPU);
  const Tensors results = step(rms_norm_of(there), there), expected = step(rms_norm_of(here), here);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(results[i], expected[i])) << i;
  EXPECT_GT(expected[1].abs().max().item<float>(), 1e-3f);
}

TEST(FakeDeviceNetwork, HasTheGradientsOfKernelsOfTwoThreads) {
  on_device();
  const Tensors there = leaves_on(device()), here = leaves_on(at::kCPU);
  const Tensors results = step(QueuedRmsNorm::apply(there[0], there[1]), there),
                expected = step(rms_norm_of(here), here);
  for (size_t i = 0; i < expected.size(); ++i)  // fp32 sums of at most 96 terms in another order
    EXPECT_TRUE(at::allclose(results[i], expected[i], 1e-4, 1e-6)) << i;
}

TEST(FakeDeviceNetwork, RunsItsBackwardPassInAThreadOfTheDevice) {
  const at::Tensor x = at::ones({2}, on_device()).requires_grad_(true);
  std::thread::id thread;
  x.register_hook([&](const at::Tensor& grad) {
    EXPECT_EQ(grad.device(), device());
    thread = std::this_thread::get_id();
  });
  (x * 2).sum().backward();
  EXPECT_NE(thread, std::thread::id());
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(FakeDeviceThreads, UseTheDeviceInTurn) {
  on_device();
  constexpr int kRounds = 50;
  const auto work = [](float scale) {
    int wrong = 0;
    for (int i = 0; i < kRounds; ++i) {
      const at::Tensor x = at::full({4, 8}, scale, on_device()),
                       weight = at::full({8}, scale + i, on_device());
      const at::Tensor y = queue_rms_norm(x, weight).add_(queue_rms_norm(x, weight));
      wrong += y.eq(2 * (scale + i)).all().item<bool>() ? 0 : 1;
    }
    return wrong;
  };
  int other_wrong = kRounds;
  std::thread other([&] { other_wrong = work(2); });
  EXPECT_EQ(work(4), 0);
  other.join();
  EXPECT_EQ(other_wrong, 0);
}

}  // namespace
}  // namespace shardwise::fake_device
