// Rank 0's end of a connection whose other end has not yet proven to be a rank of the job.
//
//   state        message        then
//   hello        hello          rank 0 sends its challenge; state proof
//   proof        right proof    state handshake
//                wrong proof    another_secret
//                refusal        another_secret
//   handshake    handshake      handshake
//   any          end of socket  closed
//   hello, proof anything else  stranger
//   handshake    anything else  closed
//
// Whatever arrives before a right proof is an outcome, which ends this connection alone. Only a process that
// knows the secret can end the rendezvous, by a handshake or a version that contradicts rank 0's.
#pragma once
#include "shardwise/comm/shm/introduction.h"
#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {

class Visitor {
 public:
  enum class Outcome {
    waits,           // for the next message
    closed,          // said nothing wrong
    another_secret,  // or a stranger without one
    stranger,        // of another program, or of a version that cannot introduce itself
    handshake
  };

  /// Takes a connected socket. Errors: those of base::random_bits.
  Visitor(Fd socket, const ConnectOptions& options);
  const Fd& socket() const { return socket_; }
  /// Reads a message, which must be there. Errors: base::CommError for a process that knows the secret and
  /// has another version, or whose descriptors this process has no room for.
  Outcome read(const ConnectDeadline& deadline);
  /// Returns what the outcome `handshake` has read, and the socket. At most once.
  Handshake take_handshake() { return std::move(handshake_); }
  Fd take_socket() { return std::move(socket_); }

 private:
  enum class State { hello, proof, handshake };
  Outcome read_introduction(const ConnectDeadline& deadline);
  Outcome answer_hello(const Introduction& hello);
  Outcome check_proof(const Introduction& message, const ConnectDeadline& deadline);
  Outcome read_handshake(const ConnectDeadline& deadline);

  Fd socket_;
  Connection connection_;
  Nonce nonce_, rank_nonce_{};
  State state_ = State::hello;
  Handshake handshake_;
};

}  // namespace shardwise::comm::shm
