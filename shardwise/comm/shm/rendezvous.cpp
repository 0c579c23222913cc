#include "shardwise/comm/shm/rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/coordinator.h"
#include "shardwise/comm/shm/introduction.h"
#include "shardwise/comm/shm/rendezvous_socket.h"
#include "shardwise/comm/shm/socket_owner.h"

namespace shardwise::comm::shm {
namespace {

Fd connect_to_coordinator(const ConnectOptions& options, const ConnectDeadline& deadline) {
  constexpr int kTriesPerCheck = 50;
  const SocketAddress address(options.job);
  Fd socket = new_socket(deadline);
  name_socket(socket, deadline);
  auto pause = std::chrono::microseconds(100);
  const auto is_connected = [&] {
    limit_waits(socket, deadline);
    return connect(socket.get(), address.get(), address.length) == 0;
  };
  for (int tries = 0; !is_connected(); ++tries) {
    const bool may_retry = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
    if (!may_retry)
      deadline.fail(0, fmt::format("cannot connect a socket; {} [SW0335]", std::strerror(errno)));
    if (tries % kTriesPerCheck == 0) check_owner(socket_owner(options.job), deadline);
    if (deadline.is_over()) deadline.fail_missing(0);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(20'000));
  }
  check_owner(peer_user(socket), deadline);
  return socket;
}

/// Connects to rank 0 and sends `local`, once it has proven to be rank 0. Retries if the socket closes
/// before: it belonged to an earlier rendezvous of the same job, or rank 0 has exited.
Fd join_coordinator(const ConnectOptions& options, const Handshake& local, const ConnectDeadline& deadline) {
  Fd socket = connect_to_coordinator(options, deadline);
  while (!introduce(socket, options, deadline)) {
    if (deadline.is_over()) deadline.fail_missing(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    socket = connect_to_coordinator(options, deadline);
  }
  send_to(socket, local, 0, deadline);  // if the socket is closed, receive_from finds out
  return socket;
}

// Retries if rank 0 closes the socket before its first handshake.
std::vector<Handshake> exchange_with_coordinator(const ConnectOptions& options, const Handshake& local) {
  const ConnectDeadline deadline(options.rank, options.timeout);
  std::vector<Handshake> handshakes;
  Fd socket;
  while (int(handshakes.size()) < options.size) {
    if (handshakes.empty()) socket = join_coordinator(options, local, deadline);
    if (!wait_readable(socket, deadline))
      deadline.fail(-1, "timed out before all ranks had connected [SW0326]");
    std::optional<Handshake> handshake = receive_from(socket, /*sender=*/0, deadline);
    if (handshake) {
      handshakes.push_back(std::move(*handshake));
    } else if (!handshakes.empty()) {
      deadline.fail(0, "rank 0 exited during the rendezvous [SW0339]");
    }
  }
  return handshakes;
}

/// Maps a peer's region and closes its file.
Member mapped(Handshake peer, const PeerInfo& self) {
  Region region = Region::map(std::move(peer.region), peer.info.region_bytes);
  region.close_file();
  const bool is_thread = peer.info.peer.is_same_process(self);
  return {std::move(region), peer.info.peer.pid, is_thread ? Fd() : std::move(peer.pidfd)};
}

/// Returns all members but this rank, in rank order.
std::vector<Member> map_peers(std::vector<Handshake> handshakes, int local_rank, const PeerInfo& self) {
  std::vector<Member> peers;
  for (int rank = 0; rank < int(handshakes.size()); ++rank) {
    if (rank != local_rank) peers.push_back(mapped(std::move(handshakes[size_t(rank)]), self));
  }
  return peers;
}

/// Sets this rank's abort word, because peers may already be in the group: their next wait fails. A `peer`
/// below 0 blames this rank.
void abort_region(const Region& region, const ConnectOptions& options, int peer, const std::string& reason) {
  region.control().abort.set_once(peer < 0 ? options.rank : peer,
                                  fmt::format("rank {} aborted: {} [SW0345]", options.rank, reason));
}

}  // namespace

void check_options(const ConnectOptions& options) {
  TORCH_CHECK_VALUE(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
                    "connect: rank must be in [0, size); got rank ", options.rank, " of ", options.size,
                    " [SW0299]");
  TORCH_CHECK_VALUE(options.size <= kMaxRanks, "connect: a shared-memory group must have at most ", kMaxRanks,
                    " ranks; got ", options.size, " [SW0133]");
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "connect: timeout must be above 0 ms; got ",
                    options.timeout.count(), " [SW0298]");
  const int64_t one_shot_bytes = options.one_shot_bytes.value_or(0);
  TORCH_CHECK_VALUE(one_shot_bytes >= 0 && one_shot_bytes <= int64_t(kInlineBytes),
                    "connect: one_shot_bytes must be from 0 to ", kInlineBytes, "; got ", one_shot_bytes,
                    " [SW0300]");
}

Rendezvous rendezvous(const ConnectOptions& options) {
  Region region = Region::create(options.size);
  Handshake handshake = make_handshake(options, region);
  const PeerInfo self = handshake.info.peer;
  Rendezvous result;
  std::vector<Member> peers;
  try {
    std::vector<Handshake> handshakes = options.rank == 0 ? Coordinator(options, std::move(handshake)).run()
                                                          : exchange_with_coordinator(options, handshake);
    result.cores = usable_cores(handshakes);
    result.one_shot = handshakes[0].info.one_shot;
    peers = map_peers(std::move(handshakes), options.rank, self);
  } catch (const base::CommError& error) {
    abort_region(region, options, error.where().peer, base::one_line(error));
    throw;
  } catch (const std::exception& error) {
    abort_region(region, options, /*peer=*/-1, base::one_line(error));
    throw;
  }
  const auto above = peers.begin() + options.rank;
  std::move(peers.begin(), above, std::back_inserter(result.members));
  result.members.push_back({std::move(region), self.pid, Fd()});
  std::move(above, peers.end(), std::back_inserter(result.members));
  return result;
}

}  // namespace shardwise::comm::shm
