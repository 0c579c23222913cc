// The device's memory: who may touch it, when it is reused, and what is in it.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/emulator/fake_device/on_device.h"
#include "tests/support/fake_device/allocator.h"
#include "tests/support/fake_device/host_views.h"
#include "tests/support/fake_device/memory.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

float first(const at::Tensor& x) {
  return *static_cast<volatile const float*>(x.const_data_ptr<float>());
}

const auto kDiesByAccess = ::testing::KilledBySignal(SIGSEGV);

/// Limits the memory while it lives.
class Capacity {
 public:
  explicit Capacity(size_t bytes) {
    const Open frees_what_was_released;
    set_capacity(bytes);
  }
  ~Capacity() { set_capacity(Memory::kBytes); }
};

TEST(FakeDeviceMemory, KillsTheHostThatTouchesIt) {
  const at::Tensor x = at::full({4}, 3.0f, on_device());
  EXPECT_EXIT(first(x), kDiesByAccess, "");
  EXPECT_EXIT(*x.data_ptr<float>() = 1.0f, kDiesByAccess, "");
}

TEST(FakeDeviceMemory, IsOpenUnderTheOutermostOpenOnly) {
  const at::Tensor x = at::full({4}, 3.0f, on_device());
  {
    const Open outer;
    { const Open inner; }
    EXPECT_EQ(first(x), 3.0f);
  }
  EXPECT_EXIT(first(x), kDiesByAccess, "");
}

TEST(FakeDeviceMemory, OnHostSeesTheSameElementsAndKeepsThem) {
  at::Tensor x = at::full({2, 3}, 3.0f, on_device());
  const at::Tensor host = on_host(x.t());
  EXPECT_TRUE(host.is_cpu());
  EXPECT_EQ(host.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(host.strides(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(host.data_ptr(), x.data_ptr());
  EXPECT_EXIT(first(host), kDiesByAccess, "");
  x = at::Tensor();
  const Open open;
  const at::Tensor other = at::empty({2, 3}, on_device());
  EXPECT_EQ(first(host), 3.0f);
}

TEST(FakeDeviceMemory, BeginsAsNaNsEvenIfItWasUsed) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = at::empty({1000}, on_device());
    const Open open;
    EXPECT_TRUE(on_host(x).isnan().all().item<bool>());
    on_host(x).fill_(1);
  }
}

TEST(FakeDeviceMemory, IsAlignedAsByCuda) {
  const at::Tensor a = at::empty({3}, on_device()), b = at::empty({3}, on_device());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data_ptr()) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data_ptr()) % 256, 0u);
}

TEST(FakeDeviceMemory, IsReusedOnlyAfterTheKernelsThatWereQueued) {
  const at::Tensor weight = at::full({8}, 5.0f, on_device());
  at::Tensor x = at::full({2, 8}, 2.0f, on_device());
  const void* const old = x.data_ptr();
  const at::Tensor y = queue_rms_norm(x, weight);
  x = at::Tensor();
  EXPECT_NE(at::empty({2, 8}, on_device()).data_ptr(), old);
  EXPECT_EQ(y.cpu().min().item<float>(), 5.0f);  // of equal elements, each is 1 before the weight
  EXPECT_EQ(y.cpu().max().item<float>(), 5.0f);
  EXPECT_EQ(at::empty({2, 8}, on_device()).data_ptr(), old);
}

TEST(FakeDeviceMemory, ThatIsFullNamesWhatWasAskedAndWhatIsFree) {
  on_device();
  const Capacity capacity(4096);
  const at::Tensor x = at::empty({256 * 3}, on_device());
  try {
    at::empty({257}, on_device());
    FAIL() << "more than the capacity was allocated";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("asked for 1028 bytes; 1024 of 4096 bytes are free"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(at::empty({256}, on_device()));
  EXPECT_THROW(set_capacity(Memory::kBytes + 1), c10::ValueError);
}

TEST(FakeDeviceMemory, ThatIsFullWaitsForWhatWasReleased) {
  on_device();
  const Capacity capacity(4096);
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = at::empty({1024}, on_device());
    EXPECT_NE(x.data_ptr(), nullptr);
  }
}

}  // namespace
}  // namespace shardwise::fake_device
