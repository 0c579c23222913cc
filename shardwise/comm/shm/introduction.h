// How the ends of a rendezvous' socket prove to each other that they know the job's secret, before either
// sends a descriptor:
//
//   rank → rank 0   hello      a random number, the rank's nonce
//   rank 0 → rank   challenge  rank 0's nonce and proof
//   rank → rank 0   proof      the rank's proof; after it the rank sends its handshake
//
// A proof is a hash, keyed by the secret, of the prover's role, both nonces, the job and the connection: so
// it proves nothing in another connection, in which somebody may have repeated or passed it on. The
// connection is the rank's end as the kernel reports it at both ends: the name of the rank's socket, and its
// network namespace. A job without a secret has the secret 0, which everybody knows.
//
// visitor.h is rank 0's side, introduce() that of the other ranks.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "shardwise/base/fd.h"
#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm::shm {

using base::Fd;

/// The last byte of a header's magic is the version of all messages but introductions, and of control.h.
inline constexpr uint64_t kMagic = 0x7368'6172'6477'6905;
/// Returns whether a message is of this program, in any version.
constexpr bool is_ours(uint64_t magic) {
  return magic >> 8 == kMagic >> 8;
}

/// `refusal`: the rank refuses rank 0, which does not know the rank's secret. `reject`: rank 0's rendezvous
/// has failed.
enum class MessageType : uint64_t { hello = 1, challenge, proof, refusal, reject, handshake };

/// What every message begins with.
struct Header {
  uint64_t magic = kMagic;
  MessageType type{};
};

using Nonce = std::array<uint64_t, 2>;
/// Returns a random number. Errors: those of base::random_bits.
Nonce random_nonce();

/// Every message but the handshake. All versions have this layout, so that ranks of two versions can prove
/// that they know the secret before they reject each other.
struct Introduction {
  Header header;
  Nonce nonce{};       // of a hello and a challenge
  uint64_t proof = 0;  // of a challenge and a proof

  static Introduction of(MessageType type) { return {{kMagic, type}}; }
};

struct ReceivedIntroduction {
  bool is_closed = false;               // the peer closed the socket
  std::optional<Introduction> message;  // nullopt if it is closed or sent something else
};

/// Sends a message unless the peer has closed the socket or leaves no room; never waits.
void send_introduction(const Fd& socket, const Introduction& message);
/// Receives a message, without the descriptors that a stranger may have sent with it.
ReceivedIntroduction receive_introduction(const Fd& socket);

/// One connection of a rank to rank 0, as both ends see it.
class Connection {
 public:
  enum class Role : uint64_t { rank_0, other_rank };

  /// The connection of `socket`, whose other end is the rank's.
  static Connection at_rank_0(const Fd& socket, const std::string& job, const base::Secret& secret);
  /// The connection of `socket`, which has a name and is the rank's end.
  static Connection at_rank(const Fd& socket, const std::string& job, const base::Secret& secret);

  /// Returns the proof of `prover`. `rank` is the nonce of the hello, `rank_0` that of the challenge.
  uint64_t proof(Role prover, const Nonce& rank, const Nonce& rank_0) const;

 private:
  Connection(std::string name, uint64_t network, std::string job, const base::Secret& secret)
      : name_(std::move(name)), network_(network), job_(std::move(job)), secret_(secret) {}

  std::string name_;  // of the rank's socket
  uint64_t network_;  // the kernel's number of its network namespace; 0 before Linux 5.14
  std::string job_;
  base::Secret secret_;
};

/// Introduces a rank to rank 0 at the other end of `socket`, which has a name. Sends a hello; then
///
///   answer                               then
///   end of socket                        returns false
///   challenge, right proof               sends its proof, returns true
///   challenge, right, of other version   sends its proof, so that rank 0 fails, too; error
///   challenge, wrong proof               sends a refusal, so that rank 0 counts it; error
///   reject, anything else, or nothing    error
///
/// Errors: base::CommError, which names rank 0.
bool introduce(const Fd& socket, const ConnectOptions& options, const ConnectDeadline& deadline);

}  // namespace shardwise::comm::shm
