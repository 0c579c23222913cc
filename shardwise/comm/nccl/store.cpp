#include "shardwise/comm/nccl/store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "shardwise/base/error.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/rendezvous.h"

namespace shardwise::comm::nccl {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::TCPStore>;

c10d::TCPStoreOptions options(uint16_t port, bool is_server, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

/// Opens this rank's server or client of the store. Returns null and sets `error_text` if that fails.
StorePtr open_local(const Group& bootstrap_group, const std::string& address, uint16_t port,
                    std::chrono::milliseconds timeout, std::string& error_text) {
  const bool is_server = bootstrap_group.rank() == 0;
  try {
    return c10::make_intrusive<c10d::TCPStore>(address, options(port, is_server, timeout));
  } catch (const std::exception& error) {
    error_text = fmt::format("rank {} cannot {} the store at {} port {}: {} [SW0308]", bootstrap_group.rank(),
                             is_server ? "serve" : "reach", address, port, base::one_line(error));
    return nullptr;
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const Group& bootstrap_group, const std::string& address,
                                           std::chrono::milliseconds timeout) {
  const ConnectDeadline deadline(bootstrap_group.rank(), timeout);
  StorePtr store;
  std::string local_error;
  const bool is_server = bootstrap_group.rank() == 0;
  if (is_server) store = open_local(bootstrap_group, address, /*port=*/0, timeout, local_error);
  const uint16_t port = gather_values(store ? store->getPort() : uint16_t{0}, bootstrap_group).front();
  const std::string server = first_text(is_server ? address : std::string(), bootstrap_group);
  if (!is_server && port != 0) store = open_local(bootstrap_group, server, port, timeout, local_error);
  // All ranks throw the same error, so that no rank waits for one that has failed.
  const std::string error = first_text(local_error, bootstrap_group);
  if (!error.empty()) deadline.fail(/*peer=*/-1, error);
  return store;
}

}  // namespace shardwise::comm::nccl
