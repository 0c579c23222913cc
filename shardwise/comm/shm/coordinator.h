// Rank 0's part of a rendezvous.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {

/// Receives the handshakes of all other ranks, then sends all of them to every rank. Waits for all
/// connections at once, so that one that says nothing delays no rank; refuses other users and other secrets.
class Coordinator {
 public:
  /// `local` is rank 0's handshake. Keeps a reference to `options`.
  Coordinator(const ConnectOptions& options, Handshake local);
  /// Returns all handshakes, by rank. Errors: base::CommError, also to the ranks that have connected.
  std::vector<Handshake> run();

 private:
  void listen_to_job();
  void check_owner() const;
  void wait_for_event();
  void accept_visitor();
  void read_visitor(size_t index);
  void admit(Fd& visitor, Handshake handshake);
  void send_all(const std::vector<Handshake>& handshakes);
  void reject_all();
  std::string missing() const;

  const ConnectOptions& options_;
  ConnectDeadline deadline_;
  Fd listener_;
  std::vector<std::optional<Handshake>> handshakes_;
  std::vector<Fd> sockets_;   // of the ranks that have connected
  std::vector<Fd> visitors_;  // connections whose rank is not known yet
  int connected_ = 1, refused_ = 0;
};

}  // namespace shardwise::comm::shm
