// Operations of ATen on the device: values, results in place and in given tensors, and what is refused.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/emulator/fake_device/on_device.h"

namespace shardwise::fake_device {
namespace {

class FakeDeviceOperations : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  /// 0, 1, 2, ... : all results of these tests are integers that every dtype holds.
  at::Tensor numbers(at::IntArrayRef shape) const {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    return at::arange(n, on_device(GetParam())).view(shape);
  }
  at::Tensor of(const std::vector<int64_t>& elements) const {
    return at::tensor(elements).to(on_device(GetParam()));
  }
  void expect(const at::Tensor& x, const std::vector<int64_t>& elements) const {
    EXPECT_EQ(x.device(), device());
    EXPECT_EQ(x.scalar_type(), GetParam());
    const at::Tensor host = x.cpu().to(at::kLong).contiguous().view({-1});
    EXPECT_EQ(
        std::vector<int64_t>(host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()),
        elements);
  }
};

TEST_P(FakeDeviceOperations, MultiplyMatrices) {
  const at::Tensor a = numbers({2, 3}), b = numbers({3, 2});  // [0 1 2; 3 4 5], [0 1; 2 3; 4 5]
  expect(at::mm(a, b), {10, 13, 28, 40});
  at::Tensor out = at::empty({2, 2}, a.options());
  at::mm_out(out, a, b);
  expect(out, {10, 13, 28, 40});
  expect(out.addmm_(a, b, /*beta=*/1, /*alpha=*/-1), {0, 0, 0, 0});
  expect(at::bmm(a.view({2, 1, 3}), b.expand({2, 3, 2})), {10, 13, 28, 40});
  expect(at::linear(a, b.t()), {10, 13, 28, 40});
}

TEST_P(FakeDeviceOperations, SelectJoinAndSum) {
  const at::Tensor a = numbers({2, 3}), index = at::tensor({1, 1, 0}, at::kLong).to(device());
  expect(at::index_select(a, 0, index), {3, 4, 5, 3, 4, 5, 0, 1, 2});
  expect(at::index(a, {{index}}), {3, 4, 5, 3, 4, 5, 0, 1, 2});
  expect(at::cat({a, a.narrow(1, 1, 1)}, 1), {0, 1, 2, 1, 3, 4, 5, 4});
  expect(at::stack({a.select(0, 0), a.select(0, 1)}, 1), {0, 3, 1, 4, 2, 5});
  expect(a.sum(1, /*keepdim=*/false, GetParam()), {3, 12});
  expect(at::where(a > 2, a, at::zeros_like(a)), {0, 0, 0, 3, 4, 5});
}

TEST_P(FakeDeviceOperations, WriteInPlace) {
  at::Tensor a = numbers({2, 2});
  a.add_(a).mul_(3).sub_(at::ones({}, at::kLong));  // a number without dims may be the CPU's
  expect(a, {-1, 5, 11, 17});
  a.select(1, 0).zero_();
  expect(a, {0, 5, 0, 17});
  a.t().copy_(numbers({2, 2}));
  expect(a, {0, 2, 1, 3});
  a.index_add_(0, at::tensor({1}, at::kLong).to(device()), of({5, 6}).view({1, 2}));
  expect(a, {0, 2, 6, 9});
  at::_foreach_add_({a, a.select(0, 0)}, 1);
  expect(a, {2, 4, 7, 10});
}

TEST_P(FakeDeviceOperations, GiveResultsTheirShape) {
  const at::Tensor a = numbers({2, 3}), b = numbers({3, 2});
  at::Tensor empty = at::empty({0}, a.options()), large = at::empty({16}, a.options()).resize_({0});
  const void* const memory = large.storage().data();
  at::mm_out(empty, a, b);
  at::mm_out(large, a, b);
  expect(empty, {10, 13, 28, 40});
  expect(large, {10, 13, 28, 40});
  EXPECT_EQ(large.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(large.data_ptr(), memory);
  expect(empty.add_(1), {11, 14, 29, 41});
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FakeDeviceOperations,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kLong));

TEST(FakeDeviceOperation, SoftmaxIsTheCpus) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor host = (at::arange(35, at::kFloat).view({5, 7}) / 4).sin().to(dtype);
    EXPECT_TRUE(at::equal(at::softmax(host.to(on_device(dtype)), 1).cpu(), at::softmax(host, 1)));
  }
}

TEST(FakeDeviceOperation, InPlaceReturnsItsInput) {
  const at::Tensor x = at::full({3}, -1.0f, on_device());
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu_", "").callBoxed(stack);
  EXPECT_TRUE(stack.at(0).toTensor().is_same(x));
  EXPECT_EQ(x.sum().item<float>(), 0.0f);
}

void expect_refused(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "expected an error: " << text;
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(FakeDeviceOperation, RefusesTensorsOfTwoDevicesByName) {
  const at::Tensor x = at::ones({3, 3}, on_device()), host = at::ones({3, 3});
  at::Tensor out = at::empty({3, 3});
  const std::string text = "two devices, emulated:0 and cpu!", mm = "aten::mm: Expected all tensors";
  expect_refused([&] { (void)(x + host); }, text);
  expect_refused([&] { at::mm(x, host); }, text);
  expect_refused([&] { at::mm(x, host); }, mm);
  expect_refused([&] { at::mm_out(out, x, x); }, text);
  expect_refused([&] { at::cat({x, host}); }, text);
  EXPECT_EQ(at::index(x, {{at::tensor({0}, at::kLong)}}).sum().item<float>(), 3.0f);  // as CUDA
}

TEST(FakeDeviceOperation, RefusesInputsThatOverlapTheResult) {
  const at::Tensor x = at::ones({4}, on_device());
  at::Tensor out = x.narrow(0, 1, 3);
  expect_refused([&] { at::add_out(out, x.narrow(0, 0, 3), at::ones({3}, on_device())); },
                 "unsupported operation");
}

}  // namespace
}  // namespace shardwise::fake_device
