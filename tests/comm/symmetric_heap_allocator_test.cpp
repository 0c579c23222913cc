// The symmetric heap as a c10::Allocator: torch's storages in memory that collectives read in place.
#include "shardwise/comm/shm/backend.h"

#include <ATen/EmptyTensor.h>

#include "tests/comm/backends.h"
#include "tests/comm/values.h"

namespace shardwise::comm::shm::symmetric_heap_allocator_test {
namespace {

using namespace shardwise::testing;

at::Tensor empty(c10::Allocator& allocator, at::IntArrayRef sizes) {
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), at::kFloat,
                                   std::nullopt);
}

TEST(SymmetricHeapAllocator, AllocatesMemoryThatCollectivesReadInPlace) {
  on_backends(2, [](Backend& backend, int rank) {
    c10d::Backend& any = backend;
    const std::shared_ptr<c10::Allocator> allocator = any.getMemAllocator();
    Tensors x = {empty(*allocator, {100, 50}).copy_(value({100, 50}, rank, at::kFloat))};
    EXPECT_TRUE(backend.transport()->contains(x[0]));
    backend.allreduce(x, {})->wait();
    EXPECT_TRUE(equals(x[0], reduced({100, 50}, 2, Reduce::sum)));
    EXPECT_EQ(backend.transport()->copied_bytes(), 5000 / 2 * 4);  // its slice, into the peer's
  });
}

TEST(SymmetricHeapAllocator, FollowsTheRulesOfCpuStorages) {
  auto progress = std::make_shared<Progress>();
  const auto heap = std::make_shared<Heap>(Region::create(2), progress);
  SymmetricHeapAllocator allocator(heap);
  EXPECT_EQ(empty(allocator, {0, 3}).data_ptr(), nullptr);
  at::Tensor x = empty(allocator, {30}).fill_(7);
  EXPECT_EQ(heap->live_bytes(), 120);
  x.resize_({3000});  // the storage is resized by its own allocator
  EXPECT_TRUE(heap->region().contains(x.data_ptr()));
  EXPECT_TRUE(x.narrow(0, 0, 30).eq(7).all().item<bool>());
  EXPECT_EQ(heap->live_bytes(), 12'000);
  const c10::DataPtr copy = allocator.clone(x.data_ptr(), 120);
  EXPECT_EQ(static_cast<const float*>(copy.get())[29], 7);
  EXPECT_EQ(heap->live_bytes(), 12'120);
}

TEST(SymmetricHeapAllocator, QuarantinesFreedMemory) {
  auto progress = std::make_shared<Progress>();
  const auto heap = std::make_shared<Heap>(Region::create(2), progress);
  SymmetricHeapAllocator allocator(heap);
  void* address = allocator.allocate(128).get();
  EXPECT_EQ(heap->live_bytes(), 0);
  EXPECT_NE(allocator.allocate(128).get(), address);
  progress->passed = ++progress->started;
  EXPECT_EQ(allocator.allocate(128).get(), address);
}

// The mapping lives as long as its storages.
TEST(SymmetricHeapAllocator, MayBeDestroyedBeforeItsStorages) {
  at::Tensor x;
  {
    SymmetricHeapAllocator allocator(std::make_shared<Heap>(Region::create(2), std::make_shared<Progress>()));
    x = empty(allocator, {1000});
  }
  EXPECT_EQ(x.fill_(3).sum().item<float>(), 3000);
}

}  // namespace
}  // namespace shardwise::comm::shm::symmetric_heap_allocator_test
