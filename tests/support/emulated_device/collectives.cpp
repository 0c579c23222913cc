#include "tests/support/emulated_device/collectives.h"

#include "tests/support/fake_device/graph.h"
#include "tests/support/fake_device/host_views.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::emulated_device {

using at::Tensor;
using comm::Reduce;
using fake_device::on_host;
using fake_device::Open;
using fake_device::run_or_record;

namespace {

comm::CollectiveBackend::Tensors all_on_host(const comm::CollectiveBackend::Tensors& tensors) {
  comm::CollectiveBackend::Tensors views;
  for (const Tensor& tensor : tensors) views.push_back(on_host(tensor));
  return views;
}

/// A receive into the fake device's memory, which its progress needs open.
class DeviceReceive final : public comm::PendingReceive {
 public:
  explicit DeviceReceive(std::unique_ptr<comm::PendingReceive> host) : host_(std::move(host)) {}
  bool poll() override {
    const Open open;
    return host_->poll();
  }
  void wait(std::optional<std::chrono::milliseconds> limit) override {
    const Open open;
    host_->wait(limit);
  }
  int sender() const override { return host_->sender(); }

 private:
  std::unique_ptr<comm::PendingReceive> host_;
};

}  // namespace

void HostCollectives::broadcast_(Tensor& x, int root) {
  run_or_record([this, x, root] {
    Tensor view = on_host(x);
    host_.broadcast_(view, root);
  });
}

void HostCollectives::all_reduce_(Tensor& x, Reduce reduce) {
  run_or_record([this, x, reduce] {
    Tensor view = on_host(x);
    host_.all_reduce_(view, reduce);
  });
}

void HostCollectives::all_gather(Tensors& pieces, const Tensor& shard) {
  run_or_record([this, pieces, shard] {
    Tensors views = all_on_host(pieces);
    host_.all_gather(views, on_host(shard));
  });
}

void HostCollectives::all_gather_even(Tensor& out, const Tensor& shard) {
  run_or_record([this, out, shard] {
    Tensor view = on_host(out);
    host_.all_gather_even(view, on_host(shard));
  });
}

void HostCollectives::reduce_scatter(Tensor& out, const Tensors& pieces, Reduce reduce) {
  run_or_record([this, out, pieces, reduce] {
    Tensor view = on_host(out);
    host_.reduce_scatter(view, all_on_host(pieces), reduce);
  });
}

void HostCollectives::reduce_scatter_even(Tensor& out, const Tensor& x, Reduce reduce) {
  run_or_record([this, out, x, reduce] {
    Tensor view = on_host(out);
    host_.reduce_scatter_even(view, on_host(x), reduce);
  });
}

void HostCollectives::scatter(Tensor& out, const Tensors& pieces, int root) {
  run_or_record([this, out, pieces, root] {
    Tensor view = on_host(out);
    host_.scatter(view, all_on_host(pieces), root);
  });
}

void HostCollectives::gather(Tensors& pieces, const Tensor& shard, int root) {
  run_or_record([this, pieces, shard, root] {
    Tensors views = all_on_host(pieces);
    host_.gather(views, on_host(shard), root);
  });
}

void HostCollectives::all_to_all(Tensors& outs, const Tensors& pieces) {
  run_or_record([this, outs, pieces] {
    Tensors views = all_on_host(outs);
    host_.all_to_all(views, all_on_host(pieces));
  });
}

void HostCollectives::all_to_all_rows(Tensor& out, const std::vector<int64_t>& out_rows, const Tensor& x,
                                      const std::vector<int64_t>& x_rows) {
  run_or_record([this, out, out_rows, x, x_rows] {
    Tensor view = on_host(out);
    host_.all_to_all_rows(view, out_rows, on_host(x), x_rows);
  });
}

void HostCollectives::send(const Tensor& x, int to, int tag) {
  run_or_record([this, x, to, tag] { host_.send(on_host(x), to, tag); });
}

std::unique_ptr<comm::PendingReceive> HostCollectives::receive(const Tensor& x, int from, int tag) {
  const Open open;
  return std::make_unique<DeviceReceive>(host_.receive(on_host(x), from, tag));
}

}  // namespace shardwise::emulated_device
