#include "shardwise/comm/nccl/store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/comm/gather_values.h"

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

/// This rank's end of the store; null and `ours`, if there is none.
StorePtr open_end(const Group& meeting, const std::string& host, uint16_t port,
                  std::chrono::milliseconds timeout, std::string& ours) {
  const bool is_server = meeting.rank() == 0;
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options(port, is_server, timeout));
  } catch (const std::exception& error) {
    ours = fmt::format("rank {} cannot {} the store at {} port {}: {}", meeting.rank(),
                       is_server ? "serve" : "reach", host, port, base::one_line(error));
    return nullptr;
  }
}

[[noreturn]] void fail(const Group& meeting, const std::string& what, double elapsed_s,
                       std::chrono::milliseconds timeout) {
  const double limit_s = std::chrono::duration<double>(timeout).count();
  throw base::CommError({"connect", meeting.rank(), /*peer=*/-1, /*sequence=*/0, elapsed_s, limit_s}, what);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const Group& meeting, const std::string& host,
                                           std::chrono::milliseconds timeout) {
  const base::Stopwatch watch;
  StorePtr store;
  std::string ours;
  if (meeting.rank() == 0) store = open_end(meeting, host, /*port=*/0, timeout, ours);
  const uint16_t port = gather_values(store ? store->getPort() : uint16_t{0}, meeting).front();
  const std::string address = first_text(meeting.rank() == 0 ? host : std::string(), meeting);
  if (meeting.rank() != 0 && port != 0) store = open_end(meeting, address, port, timeout, ours);
  // Told to all, so that nobody waits for a rank that has failed.
  const std::string error = first_text(ours, meeting);
  if (!error.empty()) fail(meeting, error, watch.seconds(), timeout);
  return store;
}

}  // namespace shardwise::comm::nccl
