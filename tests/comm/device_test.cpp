// What of Group does not depend on the CPU: the sum of terms by ATen, and that a group whose backend is bound
// to a device hands that device's tensors to the backend and reads none itself. Meta tensors stand for it:
// they have no memory that a kernel of the CPU could read by mistake.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "shardwise/comm/chunked_all_gather.h"
#include "shardwise/comm/chunked_reduce_scatter.h"
#include "shardwise/comm/device_sum.h"
#include "shardwise/comm/done_work.h"
#include "shardwise/comm/shm/reduce.h"
#include "tests/comm/values.h"

namespace shardwise::comm::device_test {
namespace {

using namespace shardwise::testing;
using base::Split;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor summed_by_kernel(const Tensors& terms) {
  at::Tensor sum = at::empty_like(terms[0]);
  std::vector<const void*> sources;
  for (const at::Tensor& term : terms) sources.push_back(term.const_data_ptr());
  void* target = sum.mutable_data_ptr();
  shm::reduce_kernel(sum.scalar_type(), Reduce::sum)(sources.data(), int(sources.size()), &target, 1,
                                                     sum.numel());
  return sum;
}

TEST(DeviceSum, HasTheBitsOfTheKernelsSum) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int64_t rows : {0, 1, 257}) {
        Tensors terms;
        for (int rank = 0; rank < ranks; ++rank) {
          const at::Tensor x = value({rows, 3}, rank, dtype);
          terms.push_back(at::isFloatingType(dtype) ? at::randn({rows, 3}).to(dtype) : x);
        }
        at::Tensor out = at::empty_like(terms[0]);
        const at::Tensor first = terms[0].clone();
        sum_on_device(out, terms);
        EXPECT_TRUE(at::equal(out, summed_by_kernel(terms))) << dtype << " of " << ranks;
        EXPECT_TRUE(at::equal(terms[0], first)) << "an input was written to";
      }
    }
  }
}

/// Rank 1 of 3, bound to a device; says which calls came, and looks at each tensor that they hand over.
class Recorder final : public c10d::Backend {
 public:
  Recorder() : Backend(/*rank=*/1, /*size=*/3) { setBoundDeviceId(at::Device(at::kMeta, 0)); }

  std::string calls;

  WorkPtr broadcast(Tensors& x, const c10d::BroadcastOptions&) override { return seen("broadcast", x); }
  WorkPtr allreduce(Tensors& x, const c10d::AllreduceOptions&) override { return seen("allreduce", x); }
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& x, const c10d::AllgatherOptions&) override {
    return seen("allgather", x, out);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& x, const c10d::AllgatherOptions&) override {
    return seen("allgather_base", {out, x});
  }
  WorkPtr reduce_scatter(Tensors& out, std::vector<Tensors>& x, const c10d::ReduceScatterOptions&) override {
    return seen("reduce_scatter", out, x);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& x, const c10d::ReduceScatterOptions&) override {
    return seen("reduce_scatter_base", {out, x});
  }
  WorkPtr gather(std::vector<Tensors>& out, Tensors& x, const c10d::GatherOptions&) override {
    return seen("gather", x, out);
  }
  WorkPtr scatter(Tensors& out, std::vector<Tensors>& x, const c10d::ScatterOptions&) override {
    return seen("scatter", out, x);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& x, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    return seen("alltoall_base", {out, x});
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return seen("barrier", {}); }
  WorkPtr send(Tensors& x, int, int) override { return seen("send", x); }
  WorkPtr recv(Tensors& x, int, int) override { return seen("recv", x); }

 private:
  WorkPtr seen(const std::string& call, const Tensors& tensors, const std::vector<Tensors>& lists = {}) {
    calls += call + " ";
    look(call, tensors);
    for (const Tensors& list : lists) look(call, list);
    return c10::make_intrusive<DoneWork>(getRank(), c10d::OpType::UNKNOWN, Tensors());
  }
  static void look(const std::string& call, const Tensors& tensors) {
    for (const at::Tensor& x : tensors) {
      EXPECT_TRUE(x.is_meta()) << call << " got one of " << x.device();
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

TEST_F(GroupOnDevice, AllocatesThere) {
  EXPECT_EQ(group.device(), at::Device(at::kMeta, 0));
  EXPECT_TRUE(group.empty({2, 3}, at::kBFloat16).is_meta());
  EXPECT_EQ(Group().device(), at::Device(at::kCPU));
  EXPECT_TRUE(Group().empty({2}, at::kFloat).is_cpu());
}

TEST_F(GroupOnDevice, CollectivesAreTheBackends) {
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

TEST_F(GroupOnDevice, CollectivesInPartsAreTheBackends) {
  const Split split = Split::even("rows", 7, 3);
  at::Tensor out = group.empty({2, 4}, at::kBFloat16);
  EXPECT_EQ(calls_of([&] {
              const auto sum = group.reduce_scatter_chunked(group.empty({7, 4}, at::kBFloat16), split);
              for (int i = 0; i < 3; ++i) sum->made(i);
              sum->finish(out);
            }),
            "gather gather gather ");
  EXPECT_EQ(calls_of([&] {
              const auto rows = group.all_gather_chunked(out, split);
              for (int rank = 0; rank < 3; ++rank) rows->await(rank);
              EXPECT_TRUE(rows->whole().is_meta());
            }),
            "broadcast broadcast broadcast ");
}

TEST_F(GroupOnDevice, WhatNeedsTheCpusMemoryIsRefused) {
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
