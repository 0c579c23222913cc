// Rendezvous with strangers: processes with another secret or of another user, those that pose as rank 0 or
// stand between two ranks, and those that say nothing.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "shardwise/base/clock.h"
#include "shardwise/comm/shm/introduction.h"
#include "tests/comm/raw_socket.h"
#include "tests/comm/threads.h"
#include "tests/support/deadline.h"

namespace shardwise::comm::rendezvous_strangers_test {
namespace {

using namespace shardwise::testing;

shm::ConnectOptions with_secret(const std::string& job, int rank, int size, base::Secret secret) {
  shm::ConnectOptions known = options(job, rank, size);
  known.secret = secret;
  return known;
}

TEST(RendezvousStrangers, AStrangerWithAnotherSecretIsRefusedAndTheRanksConnect) {
  const std::string job = new_job();
  const base::Secret ours = base::Secret::random(), other = base::Secret::random();
  std::thread first([&] {
    EXPECT_EQ(error_of([&] { shm::connect(with_secret(job, 0, 2, ours)).barrier(); }), "no error");
  });
  for (const base::Secret secret : {other, base::Secret{}}) {
    const std::string error = error_of([&] { shm::connect(with_secret(job, 1, 2, secret)); });
    EXPECT_TRUE(says(error, "the process at the socket of rank 0 does not know the secret")) << error;
  }
  EXPECT_EQ(error_of([&] { shm::connect(with_secret(job, 1, 2, ours)).barrier(); }), "no error");
  first.join();
}

TEST(RendezvousStrangers, RankZeroSaysHowManyHadAnotherSecret) {
  const std::string job = new_job();
  std::thread stranger(
      [&] { error_of([&] { shm::connect(with_secret(job, 1, 2, base::Secret::random())); }); });
  shm::ConnectOptions waiting = with_secret(job, 0, 2, base::Secret::random());
  waiting.timeout = std::chrono::milliseconds(300);
  const std::string error = error_of([&] { shm::connect(waiting); });
  stranger.join();
  EXPECT_TRUE(says(error, "timed out waiting for ranks: 1 (1 connections had another SHARDWISE_SECRET)"))
      << error;
}

// This thread stands for rank 1 of a group with a store, and knows the job's name from there.
TEST(RendezvousStrangers, RanksWithAStoreShowEachOtherItsSecret) {
  c10d::HashStore store;
  std::thread first([&] {
    EXPECT_EQ(error_of([&] { shm::rendezvous_via_store(store, 0, 2, std::chrono::seconds(20)); }),
              "no error");
  });
  store.wait({"shardwise/1/0"}, std::chrono::seconds(20));
  const std::vector<uint8_t> entry = store.get("shardwise/1/0");
  store.set("shardwise/1/1", entry);
  PeerInfo info;
  std::memcpy(&info, entry.data(), sizeof(info));
  const std::string job(entry.begin() + sizeof(info), entry.end());
  const std::string error = error_of([&] { shm::connect(with_secret(job, 1, 2, base::Secret{})); });
  EXPECT_TRUE(says(error, "the process at the socket of rank 0 does not know the secret")) << error;
  EXPECT_EQ(error_of([&] { shm::connect(with_secret(job, 1, 2, info.secret)); }), "no error");
  first.join();
}

/// Returns what a rank with this secret sends to a stranger at the socket of rank 0, who sends `answer`, and
/// the rank's error.
std::pair<std::vector<RawMessage>, std::string> messages_to_an_impostor(const base::Secret& secret,
                                                                        const std::string& answer) {
  const std::string job = new_job();
  RawSocket impostor(job);
  impostor.listen(1);
  std::string error;
  std::thread rank([&] {
    shm::ConnectOptions waiting = with_secret(job, 1, 2, secret);
    waiting.timeout = std::chrono::milliseconds(answer.empty() ? 200 : 20'000);
    error = error_of([&] { shm::connect(waiting); });
  });
  const base::Fd socket = impostor.accept();
  std::vector<RawMessage> messages{receive_raw(socket)};
  if (!answer.empty()) ::send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  while (!messages.back().bytes.empty()) messages.push_back(receive_raw(socket));
  rank.join();
  return {messages, error};
}

template <class Message>
std::string bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof(message)};
}

TEST(RendezvousStrangers, AnImpostorOfRankZeroGetsNeitherTheSecretNorADescriptor) {
  const base::Secret secret = base::Secret::random();
  const shm::Region region = shm::Region::create(2);
  const shm::Introduction challenge = shm::Introduction::of(shm::MessageType::challenge);
  const std::string unknown = "does not know the secret", program = "another program answered";
  const std::pair<std::string, std::string> answers[] = {
      {bytes_of(challenge), unknown},
      {bytes_of(challenge).substr(1), program},
      {bytes_of(shm::make_handshake({"job", 0, 2}, region).info), program},
      {bytes_of(shm::Introduction::of(shm::MessageType::hello)), program},
      {bytes_of(shm::Introduction::of(shm::MessageType::reject)), "rank 0 aborted the rendezvous"},
      {"hello", program},
      {"", "timed out waiting for rank 0"}};
  for (const auto& [answer, expected] : answers) {
    const auto [messages, error] = messages_to_an_impostor(secret, answer);
    EXPECT_TRUE(says(error, expected)) << error;
    EXPECT_GE(messages.size(), 2u);  // one and the end
    for (const RawMessage& message : messages) {
      EXPECT_EQ(message.descriptors, 0);
      for (const uint64_t& half : secret.words)
        EXPECT_EQ(message.bytes.find(bytes_of(half)), std::string::npos) << error;
    }
  }
}

// It takes the place of rank 0, passes the connection's messages to the real one, and would get the
// descriptors.
TEST(RendezvousStrangers, OneWhoPassesOnTheMessagesOfARankIsRefused) {
  const std::string job = new_job();
  const base::Secret secret = base::Secret::random();
  RawSocket impostor(job), posing_as_a_rank(job);
  impostor.listen(1);
  std::string error;
  std::thread betrayed([&] { error = error_of([&] { shm::connect(with_secret(job, 1, 2, secret)); }); });
  const base::Fd to_rank = impostor.accept();
  impostor.close();
  std::thread first([&] {
    EXPECT_EQ(error_of([&] { shm::connect(with_secret(job, 0, 2, secret)).barrier(); }), "no error");
  });
  posing_as_a_rank.wait_and_connect();
  const auto pass_on = [](const base::Fd& from, const base::Fd& to) {
    const RawMessage message = receive_raw(from);
    EXPECT_EQ(message.descriptors, 0);
    EXPECT_EQ(::send(to.get(), message.bytes.data(), message.bytes.size(), MSG_NOSIGNAL),
              ssize_t(message.bytes.size()));
  };
  pass_on(to_rank, posing_as_a_rank.fd());
  pass_on(posing_as_a_rank.fd(), to_rank);
  betrayed.join();
  EXPECT_TRUE(says(error, "does not know the secret")) << error;
  EXPECT_EQ(error_of([&] { shm::connect(with_secret(job, 1, 2, secret)).barrier(); }), "no error");
  first.join();
}

TEST(RendezvousProof, DependsOnRoleNoncesSecretJobAndConnection) {
  using Role = shm::Connection::Role;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const base::Fd socket(ends[0]), other(ends[1]);
  const base::Secret secret{{1, 2}};
  const shm::Nonce a{3, 4}, b{5, 6};
  const auto connection = shm::Connection::at_rank(socket, "job", secret);
  const uint64_t proof = connection.proof(Role::rank_0, a, b);
  EXPECT_EQ(shm::Connection::at_rank_0(other, "job", secret).proof(Role::rank_0, a, b), proof);
  EXPECT_NE(connection.proof(Role::other_rank, a, b), proof);
  EXPECT_NE(connection.proof(Role::rank_0, b, a), proof);
  EXPECT_NE(connection.proof(Role::rank_0, {3, 5}, b), proof);
  EXPECT_NE(connection.proof(Role::rank_0, a, {5, 7}), proof);
  EXPECT_NE(shm::Connection::at_rank(socket, "jobs", secret).proof(Role::rank_0, a, b), proof);
  EXPECT_NE(shm::Connection::at_rank(socket, "job", {{1, 3}}).proof(Role::rank_0, a, b), proof);
  RawSocket with_a_name(new_job());
  ASSERT_EQ(with_a_name.bind(), 0);
  EXPECT_NE(shm::Connection::at_rank(with_a_name.fd(), "job", secret).proof(Role::rank_0, a, b), proof);
}

/// Sends a message with more descriptors than a handshake has, so that its receiver loses some.
void send_with_too_many_descriptors(const base::Fd& socket, const shm::Handshake::Bytes& bytes) {
  constexpr int kFiles[] = {0, 1, 2, 0, 1, 2};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(kFiles))] = {};
  iovec body{const_cast<shm::Handshake::Bytes*>(&bytes), sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(kFiles));
  std::memcpy(CMSG_DATA(header), kFiles, sizeof(kFiles));
  EXPECT_EQ(sendmsg(socket.get(), &message, MSG_NOSIGNAL), ssize_t(sizeof(bytes)));
}

/// Connects six processes that do not know the secret and would each end a rendezvous that believed them;
/// waits until rank 0 has dropped them.
void send_strangers(const std::string& job) {
  const shm::Region region = shm::Region::create(2);
  shm::Handshake::Bytes handshake = shm::make_handshake({job, 1, 2}, region).info;
  std::vector<RawSocket> strangers;
  for (int i = 0; i < 6; ++i) {
    strangers.emplace_back(job);
    strangers.back().wait_and_connect();
  }
  send_raw(strangers[0].fd(), shm::kMagic ^ 0x80);
  send_with_too_many_descriptors(strangers[1].fd(), handshake);
  handshake.peer.size = 5;
  send_raw(strangers[2].fd(), handshake);
  shm::Introduction proof = shm::Introduction::of(shm::MessageType::proof);
  send_raw(strangers[3].fd(), proof);  // of a hello that it has not sent
  proof.header.magic ^= 0x80;
  for (const size_t i : {4, 5}) {
    send_raw(strangers[i].fd(), shm::Introduction::of(shm::MessageType::hello));
    EXPECT_TRUE(shm::receive_introduction(strangers[i].fd()).message);
  }
  send_raw(strangers[4].fd(), proof);
  send_with_too_many_descriptors(strangers[5].fd(), handshake);
  for (const RawSocket& stranger : strangers) EXPECT_EQ(receive_raw(stranger.fd()).bytes, "");
}

TEST(RendezvousStrangers, NobodyWithoutTheSecretEndsTheRendezvous) {
  const std::string job = new_job();
  const base::Secret secret = base::Secret::random();
  std::string error;
  std::thread first(
      [&] { error = error_of([&] { shm::connect(with_secret(job, 0, 2, secret)).barrier(); }); });
  send_strangers(job);
  EXPECT_EQ(error_of([&] { shm::connect(with_secret(job, 1, 2, secret)).barrier(); }), "no error");
  first.join();
  EXPECT_EQ(error, "no error");
}

TEST(RendezvousStrangers, RankZeroCountsThoseThatItDropped) {
  const std::string job = new_job();
  std::thread strangers([&] { send_strangers(job); });
  shm::ConnectOptions waiting = with_secret(job, 0, 2, base::Secret::random());
  waiting.timeout = std::chrono::milliseconds(int64_t(scaled_s(2) * 1000));
  const std::string error = error_of([&] { shm::connect(waiting); });
  strangers.join();
  EXPECT_TRUE(
      says(error,
           "timed out waiting for ranks: 1 (1 connections had another SHARDWISE_SECRET, 5 connections "
           "were of another program or version)"))
      << error;
}

bool is_readable_within(double seconds, const base::Fd& socket) {
  pollfd request{socket.get(), POLLIN, 0};
  return poll(&request, 1, int(scaled_s(seconds) * 1000)) == 1;
}

// Nor do they use up its descriptors: of too many, the oldest is dropped.
TEST(RendezvousStrangers, SilentVisitorsDelayNoRank) {
  const std::string job = new_job();
  std::string error;
  std::thread first([&] { error = error_of([&] { shm::connect(options(job, 0, 2)).barrier(); }); });
  std::vector<RawSocket> visitors;
  for (int i = 0; i < 100; ++i) {
    visitors.emplace_back(job);
    visitors.back().wait_and_connect();
  }
  EXPECT_TRUE(is_readable_within(20, visitors.front().fd()));  // its end
  EXPECT_FALSE(is_readable_within(0, visitors.back().fd()));
  EXPECT_EQ(error_of([&] { shm::connect(options(job, 1, 2)).barrier(); }), "no error");
  first.join();
  EXPECT_EQ(error, "no error");
}

TEST(RendezvousStrangers, TheSocketsNameHidesTheJob) {
  EXPECT_FALSE(says(shm::socket_name("a-private-name"), "private"));
  EXPECT_NE(shm::socket_name("a"), shm::socket_name("b"));
}

/// A process of another user with the socket of a job. Needs root.
class OtherUser {
 public:
  static constexpr uid_t kUser = 65534;

  OtherUser(const std::string& job, bool listens) : socket_(job) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) squat(listens, ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]), close(ready[1]);
  }
  ~OtherUser() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  /// Only system calls. The kernel's list names the user who created a socket, so the child creates its own.
  [[noreturn]] void squat(bool listens, int ready) {
    if (setuid(kUser) != 0) _exit(1);
    socket_.renew();
    const bool has_name = socket_.bind() == 0 && (!listens || listen(socket_.fd().get(), 1) == 0);
    if (!has_name || write(ready, "", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }

  RawSocket socket_;
  pid_t pid_;
};

TEST(RendezvousOtherUser, ASocketOfAnotherUserIsNamedAtOnce) {
  if (getuid() != 0) GTEST_SKIP() << "only root can act as another user";
  for (const bool listens : {true, false}) {
    const std::string job = new_job();
    const OtherUser squatter(job, listens);
    for (const int rank : {0, 1}) {
      const base::Stopwatch since_start;
      const std::string error = error_of([&] { shm::connect(options(job, rank, 2)); });
      EXPECT_TRUE(says(error, "the socket of this job belongs to user 65534")) << error;
      expect_within(since_start.seconds(), 1);
    }
  }
}

// A rank 0 that has bound the socket and does not yet listen.
TEST(RendezvousStrangers, ASocketOfTheSameUserThatDoesNotListenYetIsWaitedFor) {
  const std::string job = new_job();
  std::thread first;
  {
    RawSocket slow(job);
    ASSERT_EQ(slow.bind(), 0);
    first = std::thread(
        [&] { EXPECT_EQ(error_of([&] { shm::connect(options(job, 0, 2)).barrier(); }), "no error"); });
    const std::string error = error_of([&] { shm::connect(options(job, 1, 2, 100)); });
    EXPECT_TRUE(says(error, "timed out waiting for rank 0")) << error;
  }
  EXPECT_EQ(error_of([&] { shm::connect(options(job, 1, 2)).barrier(); }), "no error");
  first.join();
}

}  // namespace
}  // namespace shardwise::comm::rendezvous_strangers_test
