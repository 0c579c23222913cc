// Rank 0's part of a rendezvous.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/visitor.h"

namespace shardwise::comm::shm {

/// Receives the handshakes of all other ranks, then sends all of them to every rank. Waits for all
/// connections at once, so that one that says nothing delays no rank. Drops and counts those of other users
/// and those that do not prove that they know the secret: only a rank can end the rendezvous.
class Coordinator {
 public:
  /// `local` is rank 0's handshake. Keeps a reference to `options`.
  Coordinator(const ConnectOptions& options, Handshake local);
  /// Returns all handshakes, by rank. Errors: base::CommError, also to the ranks that have connected.
  std::vector<Handshake> run();

 private:
  void listen_to_job();
  void check_other_owner() const;
  void wait_for_event();
  void accept_visitor();
  void read_visitor(size_t index);
  void admit(Visitor& visitor);
  void send_all(const std::vector<Handshake>& handshakes);
  void reject_all();
  std::string missing() const;
  std::string dropped() const;

  const ConnectOptions& options_;
  ConnectDeadline deadline_;
  Fd listener_;
  std::vector<std::optional<Handshake>> handshakes_;
  std::vector<Fd> sockets_;  // of the ranks that have connected
  std::vector<Visitor> visitors_;
  int connected_ = 1;
  int other_secrets_ = 0, strangers_ = 0;  // visitors that were dropped
};

}  // namespace shardwise::comm::shm
