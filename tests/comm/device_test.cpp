// Group on devices other than the CPU: sums by ATen; a group whose backend is bound to a device passes
// tensors of that device to the backend and reads none of them. Meta tensors represent the device: they have
// no memory that a CPU kernel could read by mistake.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <thread>

#include "shardwise/comm/c10d_types.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/reduce.h"
#include "shardwise/comm/work.h"
#include "tests/comm/values.h"

namespace shardwise::comm::device_test {
namespace {

using namespace shardwise::testing;
using base::Split;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor kernel_sum(const Tensors& partials) {
  at::Tensor sum = at::empty_like(partials[0]);
  std::vector<const void*> sources;
  for (const at::Tensor& partial : partials) sources.push_back(partial.const_data_ptr());
  void* target = sum.mutable_data_ptr();
  reduce_kernel(sum.scalar_type(), Reduce::sum)(sources.data(), int(sources.size()), &target, 1, sum.numel());
  return sum;
}

TEST(DeviceGroup, OfOneRankAllocatesOnItsDevice) {
  const Group group{at::Device(at::kMeta)};
  EXPECT_EQ(group.device(), at::Device(at::kMeta));
  EXPECT_EQ(group.empty({2}, at::kFloat).device(), at::Device(at::kMeta));
  EXPECT_EQ(group.with_new_counters().device(), at::Device(at::kMeta));
  EXPECT_EQ(Group().device(), at::Device(at::kCPU));
}

TEST(DeviceSum, GivesTheBitsOfTheCpuKernel) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int64_t rows : {0, 1, 257}) {
        Tensors partials;
        for (int rank = 0; rank < ranks; ++rank) {
          const at::Tensor x = value({rows, 3}, rank, dtype);
          partials.push_back(at::isFloatingType(dtype) ? at::randn({rows, 3}).to(dtype) : x);
        }
        at::Tensor out = at::empty_like(partials[0]);
        const at::Tensor first = partials[0].clone();
        sum_on_device(out, partials);
        EXPECT_TRUE(at::equal(out, kernel_sum(partials))) << dtype << " of " << ranks;
        EXPECT_TRUE(at::equal(partials[0], first)) << "an input was written to";
      }
    }
  }
}

/// A backend of rank 1 of 3 that is bound to a device, records calls, and checks the tensors passed to it.
class Recorder final : public c10d::Backend {
 public:
  Recorder() : Backend(/*rank=*/1, /*size=*/3) { setBoundDeviceId(at::Device(at::kMeta, 0)); }

  std::string calls;
  std::chrono::milliseconds limit{0};  // of the last allreduce
  std::function<void()> during_a_call;

  WorkPtr broadcast(Tensors& x, const c10d::BroadcastOptions&) override { return record("broadcast", x); }
  WorkPtr allreduce(Tensors& x, const c10d::AllreduceOptions& options) override {
    limit = options.timeout;
    return record("allreduce", x);
  }
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& x, const c10d::AllgatherOptions&) override {
    return record("allgather", x, out);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& x, const c10d::AllgatherOptions&) override {
    return record("allgather_base", {out, x});
  }
  WorkPtr reduce_scatter(Tensors& out, std::vector<Tensors>& x, const c10d::ReduceScatterOptions&) override {
    return record("reduce_scatter", out, x);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& x, const c10d::ReduceScatterOptions&) override {
    return record("reduce_scatter_base", {out, x});
  }
  WorkPtr gather(std::vector<Tensors>& out, Tensors& x, const c10d::GatherOptions&) override {
    return record("gather", x, out);
  }
  WorkPtr scatter(Tensors& out, std::vector<Tensors>& x, const c10d::ScatterOptions&) override {
    return record("scatter", out, x);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& x, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    return record("alltoall_base", {out, x});
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return record("barrier", {}); }
  WorkPtr send(Tensors& x, int, int) override { return record("send", x); }
  WorkPtr recv(Tensors& x, int, int) override { return record("recv", x); }

 private:
  WorkPtr record(const std::string& call, const Tensors& tensors, const std::vector<Tensors>& lists = {}) {
    calls += call + " ";
    if (during_a_call) during_a_call();
    check(call, tensors);
    for (const Tensors& list : lists) check(call, list);
    return c10::make_intrusive<DoneWork>(getRank(), c10d::OpType::UNKNOWN, Tensors());
  }
  static void check(const std::string& call, const Tensors& tensors) {
    for (const at::Tensor& x : tensors) {
      EXPECT_TRUE(x.is_meta()) << call << " got a tensor on " << x.device();
      EXPECT_TRUE(x.is_contiguous()) << call;  // NCCL's rule
    }
  }
};

class GroupOnDevice : public ::testing::Test {
 protected:
  const c10::intrusive_ptr<Recorder> backend = c10::make_intrusive<Recorder>();
  const Group group{backend};

  at::Tensor strided(at::IntArrayRef sizes) const { return group.empty(sizes, at::kFloat).t(); }
  std::string calls_of(const std::function<void()>& body) {
    backend->calls.clear();
    body();
    return backend->calls;
  }
};

TEST_F(GroupOnDevice, AllocatesOnTheDevice) {
  EXPECT_EQ(group.device(), at::Device(at::kMeta, 0));
  EXPECT_TRUE(group.empty({2, 3}, at::kBFloat16).is_meta());
  EXPECT_EQ(Group().device(), at::Device(at::kCPU));
  EXPECT_TRUE(Group().empty({2}, at::kFloat).is_cpu());
}

TEST_F(GroupOnDevice, CollectivesCallTheBackend) {
  const Split even = Split::even("rows", 6, 3), uneven = Split::even("rows", 7, 3);
  at::Tensor x = strided({4, 6}), y = strided({4, 2});
  EXPECT_EQ(calls_of([&] { EXPECT_TRUE(group.all_reduce(x).is_meta()); }), "allreduce ");
  EXPECT_EQ(calls_of([&] { group.all_reduce_(x, Reduce::max); }), "allreduce ");
  EXPECT_EQ(calls_of([&] { group.broadcast_(x, 0); }), "broadcast ");
  EXPECT_EQ(calls_of([&] { EXPECT_EQ(group.all_gather(y, even).size(0), 6); }), "allgather_base ");
  EXPECT_EQ(calls_of([&] { EXPECT_EQ(group.all_gather(y, uneven).size(0), 7); }), "allgather ");
  EXPECT_EQ(calls_of([&] { EXPECT_EQ(group.reduce_scatter(x, even).size(0), 2); }), "reduce_scatter_base ");
  EXPECT_EQ(calls_of([&] { group.reduce_scatter(strided({4, 7}), uneven); }), "reduce_scatter ");
  EXPECT_EQ(calls_of([&] { group.reduce_scatter(strided({7, 4}), uneven, 1); }), "reduce_scatter ");
  EXPECT_EQ(calls_of([&] { group.scatter(x, 1); }), "scatter ");
  EXPECT_EQ(calls_of([&] { group.gather(y, 1); }), "gather ");
  EXPECT_EQ(calls_of([&] { group.all_to_all(x); }), "alltoall_base ");
  EXPECT_EQ(calls_of([&] { group.send(x, 0); }), "send ");
  EXPECT_EQ(calls_of([&] { group.recv_(x, 0); }), "recv ");
  EXPECT_EQ(calls_of([&] { group.barrier(); }), "barrier ");
}

TEST_F(GroupOnDevice, ALimitReplacesTheTimeoutOfCollectives) {
  at::Tensor x = group.empty({4}, at::kFloat);
  group.backend()->limit_collectives(std::chrono::milliseconds(70));
  group.all_reduce_(x);
  EXPECT_EQ(backend->limit, std::chrono::milliseconds(70));
  group.backend()->limit_collectives(std::chrono::milliseconds(0));
  group.all_reduce_(x);
  EXPECT_EQ(backend->limit, c10d::AllreduceOptions().timeout);
}

TEST_F(GroupOnDevice, ACallNextToThatOfAnotherThreadIsAnError) {
  const at::Tensor x = group.empty({6}, at::kFloat);
  const auto call_from_another_thread = [&] {
    std::thread([&] {
      EXPECT_THROW(group.barrier(), c10::ValueError);
      EXPECT_THROW(group.send(x, 0), c10::ValueError);
    }).join();
  };
  backend->during_a_call = call_from_another_thread;
  EXPECT_EQ(calls_of([&] { group.all_reduce(x); }), "allreduce ");
  backend->during_a_call = nullptr;
  EXPECT_EQ(calls_of([&] { std::thread([&] { group.barrier(); }).join(); }), "barrier ");
}

TEST_F(GroupOnDevice, TensorsOfAnotherDeviceAreAnError) {
  at::Tensor x = at::full({6}, 1.f);
  EXPECT_THROW(group.all_reduce_(x), c10::ValueError);
  EXPECT_THROW(group.broadcast_(x, 0), c10::ValueError);
  EXPECT_THROW(group.all_gather(x.narrow(0, 0, 2), Split::even("rows", 6, 3)), c10::ValueError);
  EXPECT_EQ(backend->calls, "");
}

TEST_F(GroupOnDevice, ChunkedCollectivesCallTheBackend) {
  const Split split = Split::even("rows", 7, 3);
  at::Tensor out = group.empty({2, 4}, at::kBFloat16);
  EXPECT_EQ(calls_of([&] {
              const auto sum = group.reduce_scatter_chunked(group.empty({7, 4}, at::kBFloat16), split);
              for (int i = 0; i < 3; ++i) sum->chunk_ready(i);
              sum->wait(out);
            }),
            "gather gather gather ");
  EXPECT_EQ(calls_of([&] {
              const auto rows = group.all_gather_chunked(out, split);
              for (int rank = 0; rank < 3; ++rank) rows->wait_chunk(rank);
              EXPECT_TRUE(rows->output().is_meta());
            }),
            "broadcast broadcast broadcast ");
}

TEST_F(GroupOnDevice, AnEmptyChunkIsNotSent) {
  const Split split = Split::even("rows", 6, 3, /*granule=*/3);  // the last rank has no rows
  EXPECT_EQ(calls_of([&] {
              const auto rows = group.all_gather_chunked(group.empty({3, 4}, at::kFloat), split);
              for (int rank = 0; rank < 3; ++rank) rows->wait_chunk(rank);
              EXPECT_EQ(rows->output().size(0), 6);
            }),
            "broadcast broadcast ");
}

TEST_F(GroupOnDevice, OperationsOnCpuMemoryFail) {
  const at::Tensor x = group.empty({6, 2}, at::kFloat);
  const Split split = Split::even("rows", 6, 3);
  const auto ignore = [](PeerBuffers) {};
  EXPECT_FALSE(group.has_symmetric_heap());
  EXPECT_THROW(group.fused_all_reduce(x, ignore), c10::ValueError);
  EXPECT_THROW(Group().fused_all_reduce(x, ignore), c10::ValueError);
  EXPECT_THROW(group.share_shard(x.narrow(0, 0, 2), split), c10::ValueError);
  EXPECT_THROW(group.reduce_scatter_chunked(at::full({6, 2}, 1.f), split), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::comm::device_test
