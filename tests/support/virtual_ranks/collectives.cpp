#include "tests/support/virtual_ranks/collectives.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "tests/support/virtual_ranks/staging.h"

namespace shardwise::virtual_ranks {

using at::Tensor;
using comm::Reduce;

namespace {

/// A receive into the host's memory, and from there to the device.
class StagedReceive final : public comm::PendingReceive {
 public:
  StagedReceive(std::unique_ptr<comm::PendingReceive> receive, Tensor host, Tensor device)
      : receive_(std::move(receive)), host_(std::move(host)), device_(std::move(device)) {}
  bool poll() override {
    if (!receive_->poll()) return false;
    finish();
    return true;
  }
  void wait(std::optional<std::chrono::milliseconds> limit) override {
    receive_->wait(limit);
    finish();
  }
  int sender() const override { return receive_->sender(); }

 private:
  void finish() {
    if (!std::exchange(is_finished_, true)) device_.copy_(host_);
  }

  std::unique_ptr<comm::PendingReceive> receive_;
  Tensor host_, device_;
  bool is_finished_ = false;
};

}  // namespace

void StagedCollectives::broadcast_(Tensor& x, int root) {
  call_on_host({x}, {x}, [this, root](const Tensors& reads, Tensors& writes) {
    writes[0].copy_(reads[0]);
    host_.broadcast_(writes[0], root);
  });
}

void StagedCollectives::all_reduce_(Tensor& x, Reduce reduce) {
  call_on_host({x}, {x}, [this, reduce](const Tensors& reads, Tensors& writes) {
    writes[0].copy_(reads[0]);
    host_.all_reduce_(writes[0], reduce);
  });
}

void StagedCollectives::all_gather(Tensors& pieces, const Tensor& shard) {
  call_on_host({shard}, pieces,
               [this](const Tensors& reads, Tensors& writes) { host_.all_gather(writes, reads[0]); });
}

void StagedCollectives::reduce_scatter(Tensor& out, const Tensors& pieces, Reduce reduce) {
  call_on_host(pieces, {out}, [this, reduce](const Tensors& reads, Tensors& writes) {
    host_.reduce_scatter(writes[0], reads, reduce);
  });
}

void StagedCollectives::reduce_scatter_even(Tensor& out, const Tensor& x, Reduce reduce) {
  call_on_host({x}, {out}, [this, reduce](const Tensors& reads, Tensors& writes) {
    host_.reduce_scatter_even(writes[0], reads[0], reduce);
  });
}

void StagedCollectives::scatter(Tensor& out, const Tensors& pieces, int root) {
  call_on_host(pieces, {out}, [this, root](const Tensors& reads, Tensors& writes) {
    host_.scatter(writes[0], reads, root);
  });
}

void StagedCollectives::gather(Tensors& pieces, const Tensor& shard, int root) {
  call_on_host({shard}, pieces,
               [this, root](const Tensors& reads, Tensors& writes) { host_.gather(writes, reads[0], root); });
}

void StagedCollectives::all_to_all(Tensors& outs, const Tensors& pieces) {
  call_on_host(pieces, outs,
               [this](const Tensors& reads, Tensors& writes) { host_.all_to_all(writes, reads); });
}

void StagedCollectives::all_to_all_rows(Tensor& out, const std::vector<int64_t>& out_rows, const Tensor& x,
                                        const std::vector<int64_t>& x_rows) {
  call_on_host({x}, {out}, [this, out_rows, x_rows](const Tensors& reads, Tensors& writes) {
    host_.all_to_all_rows(writes[0], out_rows, reads[0], x_rows);
  });
}

void StagedCollectives::send(const Tensor& x, int to, int tag) {
  host_.send(x.cpu(), to, tag);
}

std::unique_ptr<comm::PendingReceive> StagedCollectives::receive(const Tensor& x, int from, int tag) {
  const Tensor host = at::empty_like(x, x.options().device(at::kCPU), at::MemoryFormat::Contiguous);
  return std::make_unique<StagedReceive>(host_.receive(host, from, tag), host, x);
}

}  // namespace shardwise::virtual_ranks
