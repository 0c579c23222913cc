// Copies between the device and the host, and views, of the device's tensors.
#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/real.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/emulator/fake_device/on_device.h"

namespace shardwise::fake_device {
namespace {

/// Returns the elements in the order of dims.
std::vector<float> values(const at::Tensor& x) {
  const at::Tensor host = x.cpu().to(at::kFloat).contiguous();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

using Values = std::vector<float>;

TEST(FakeDeviceCopies, GoBothWaysAndBetweenDtypes) {
  const at::Tensor host = at::tensor({1.0f, 257.0f, -3.5f});
  const at::Tensor x = host.to(on_device().device());
  EXPECT_EQ(x.device().str(), "emulated:0");
  EXPECT_EQ(values(x), Values({1, 257, -3.5f}));
  EXPECT_EQ(values(host.to(on_device(at::kBFloat16))), Values({1, 256, -3.5f}));  // ties to even
  EXPECT_EQ(values(x.to(at::kBFloat16).to(at::kLong)), Values({1, 256, -3}));
  at::Tensor back = at::zeros({3}, at::kLong), there = at::empty({3}, on_device(at::kLong));
  back.copy_(x);
  there.copy_(host);
  EXPECT_EQ(values(back), Values({1, 257, -3}));
  EXPECT_EQ(values(there), Values({1, 257, -3}));
}

TEST(FakeDeviceCopies, KeepStridesAndBroadcast) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3}).t().to(on_device().device());
  EXPECT_EQ(x.strides(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(values(x), Values({0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values(x.contiguous()), Values({0, 3, 1, 4, 2, 5}));
  at::Tensor to = at::zeros({2, 4}, on_device());
  to.narrow(1, 1, 3).copy_(x.t());
  to.select(1, 0).copy_(at::tensor({9.0f}));
  EXPECT_EQ(values(to), Values({9, 0, 1, 2, 9, 3, 4, 5}));
}

TEST(FakeDeviceCopies, WithNoElements) {
  const at::Tensor x = at::empty({0, 3}, on_device());
  EXPECT_EQ(x.cpu().sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(x.to(at::kLong).cpu().numel(), 0);
}

TEST(FakeDeviceViews, ShareTheirMemory) {
  at::Tensor x = at::zeros({3, 4}, on_device());
  x.view({4, 3}).select(0, 1).fill_(1);      // elements 3, 4, 5
  x.t().narrow(0, 3, 1).fill_(2);            // 3, 7, 11
  x.view({12}).unfold(0, 2, 6)[1].fill_(3);  // 6, 7
  x.reshape({2, 6}).diagonal().add_(4);      // 0, 7
  EXPECT_EQ(values(x), Values({4, 0, 0, 2, 1, 1, 3, 7, 0, 0, 0, 2}));
}

TEST(FakeDeviceViews, OfAFallbackShareTheirMemory) {
  const at::Tensor x = at::arange(4, on_device()).view({2, 2});
  const at::Tensor z = at::view_as_complex(x);
  EXPECT_EQ(z.data_ptr(), x.data_ptr());
  EXPECT_EQ(z.device(), device());
  x.fill_(5);
  EXPECT_EQ(values(at::real(z)), Values({5, 5}));
}

TEST(FakeDeviceTensors, GrowAndKeepTheirElements) {
  at::Tensor x = at::full({2}, 7.0f, on_device());
  x.resize_({300});
  EXPECT_EQ(values(x.narrow(0, 0, 2)), Values({7, 7}));
  EXPECT_TRUE(x.narrow(0, 2, 298).isnan().all().item<bool>());
  at::Tensor other = at::empty({0}, on_device());
  other.set_(x);
  EXPECT_EQ(other.data_ptr(), x.data_ptr());
  other.set_(x.storage(), /*storage_offset=*/1, {2}, {1});
  x.select(0, 2).fill_(8);
  EXPECT_EQ(values(other), Values({7, 8}));
}

TEST(FakeDeviceTensors, AreNotPinned) {
  const at::Tensor host = at::zeros({2});
  const at::Tensor x = host.to(on_device().device());
  EXPECT_FALSE(x.is_pinned());
  EXPECT_FALSE(host.is_pinned());
  EXPECT_THROW(at::empty({2}, on_device().pinned_memory(true)), c10::Error);
}

TEST(FakeDeviceTensors, DrawWhatTheCpuDraws) {
  on_device();
  at::manual_seed(5);
  const at::Tensor host = at::randn({40}), second = at::randn({40});
  at::manual_seed(5);
  EXPECT_TRUE(at::equal(at::randn({40}, on_device()).cpu(), host));
  EXPECT_TRUE(at::equal(at::randn({40}), second));
}

}  // namespace
}  // namespace shardwise::fake_device
