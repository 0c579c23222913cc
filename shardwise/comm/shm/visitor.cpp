#include "shardwise/comm/shm/visitor.h"

#include "shardwise/comm/shm/rendezvous_socket.h"

namespace shardwise::comm::shm {

Visitor::Visitor(Fd socket, const ConnectOptions& options)
    : socket_(std::move(socket)),
      connection_(Connection::at_rank_0(socket_, options.job, options.secret)),
      nonce_(random_nonce()) {}

Visitor::Outcome Visitor::read(const ConnectDeadline& deadline) {
  return state_ == State::handshake ? read_handshake(deadline) : read_introduction(deadline);
}

Visitor::Outcome Visitor::read_introduction(const ConnectDeadline& deadline) {
  const auto [is_closed, message] = receive_introduction(socket_);
  if (is_closed) return Outcome::closed;
  if (!message) return Outcome::stranger;
  const MessageType type = message->header.type;
  if (state_ == State::hello && type == MessageType::hello) return answer_hello(*message);
  if (state_ == State::proof && type == MessageType::proof) return check_proof(*message, deadline);
  return state_ == State::proof && type == MessageType::refusal ? Outcome::another_secret : Outcome::stranger;
}

Visitor::Outcome Visitor::answer_hello(const Introduction& hello) {
  Introduction challenge = Introduction::of(MessageType::challenge);
  rank_nonce_ = hello.nonce;
  challenge.nonce = nonce_;
  challenge.proof = connection_.proof(Connection::Role::rank_0, rank_nonce_, nonce_);
  send_introduction(socket_, challenge);
  state_ = State::proof;
  return Outcome::waits;
}

Visitor::Outcome Visitor::check_proof(const Introduction& message, const ConnectDeadline& deadline) {
  if (message.proof != connection_.proof(Connection::Role::other_rank, rank_nonce_, nonce_))
    return Outcome::another_secret;
  if (message.header.magic != kMagic) fail_other_version(/*peer=*/-1, deadline);
  state_ = State::handshake;
  return Outcome::waits;
}

Visitor::Outcome Visitor::read_handshake(const ConnectDeadline& deadline) {
  std::optional<Handshake> handshake = receive_from(socket_, /*sender=*/-1, deadline);
  if (!handshake) return Outcome::closed;
  handshake_ = std::move(*handshake);
  return Outcome::handshake;
}

}  // namespace shardwise::comm::shm
