// Rendezvous: missing ranks, contradicting ranks, and no resources left behind.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/backend.h"
#include "shardwise/comm/shm/introduction.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/rendezvous_socket.h"
#include "tests/comm/alarms.h"
#include "tests/comm/failures.h"
#include "tests/comm/raw_socket.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::rendezvous_test {
namespace {

using namespace shardwise::testing;

TEST(Rendezvous, RankZeroNamesTheMissingRanks) {
  const std::string job = new_job();
  std::thread other([&] { error_of([&] { shm::connect(options(job, 2, 4, 100)); }); });
  const std::string error = error_of([&] { shm::connect(options(job, 0, 4, 200)); });
  other.join();
  EXPECT_NE(error.find("connect #0: timed out waiting for ranks: 1, 3; rank 0 waited"), std::string::npos)
      << error;
}

TEST(Rendezvous, OtherRanksNameRankZero) {
  const std::string error = error_of([&] { shm::connect(options(new_job(), 1, 2, 50)); });
  EXPECT_NE(error.find("timed out waiting for rank 0"), std::string::npos) << error;
}

/// A rank 0 of a job of two, in a thread; the constructor returns when it listens.
class RankZero {
 public:
  explicit RankZero(const std::string& job)
      : thread_(
            [job] { EXPECT_EQ(error_of([&] { shm::connect(options(job, 0, 2)).barrier(); }), "no error"); }) {
    RawSocket visitor(job);
    visitor.wait_and_connect();
  }
  ~RankZero() { thread_.join(); }

 private:
  std::thread thread_;
};

TEST(Rendezvous, ASecondRankZeroNamesTheJobAtItsTimeout) {
  const std::string job = new_job();
  const RankZero first(job);
  const std::string error = error_of([&] { shm::connect(options(job, 0, 2, 100)); });
  EXPECT_TRUE(says(error, "connect #0: another rank 0 of job " + job + " is in a rendezvous; rank 0 waited"))
      << error;
  EXPECT_EQ(error_of([&] { shm::connect(options(job, 1, 2)).barrier(); }), "no error");
}

// As of a job that is started again before the first one has all its ranks.
TEST(Rendezvous, ASecondRankZeroWaitsForTheFirst) {
  const std::string job = new_job();
  const RankZero first(job);
  std::thread second(
      [&] { EXPECT_EQ(error_of([&] { shm::connect(options(job, 0, 2)).barrier(); }), "no error"); });
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(error_of([&] { shm::connect(options(job, 1, 2)).barrier(); }), "no error");
  second.join();
}

TEST(Rendezvous, DifferentSizesAreAnErrorOnBothRanks) {
  std::string errors[2];
  on_threads(2, [&](int rank, const std::string& job) {
    errors[rank] = error_of([&] { shm::connect(options(job, rank, /*size=*/2 + rank, 2000)); });
  });
  EXPECT_NE(errors[0].find("rank 1 of 3 connected to a job of 2 ranks"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 0 aborted the rendezvous"), std::string::npos) << errors[1];
}

TEST(Rendezvous, ARankCannotConnectTwice) {
  std::string errors[3];
  on_threads(3, [&](int i, const std::string& job) {
    errors[i] = error_of([&] { shm::connect(options(job, i == 0 ? 0 : 1, 3, 2000)); });
  });
  EXPECT_NE(errors[0].find("that rank is already connected"), std::string::npos) << errors[0];
}

TEST(Rendezvous, RejectsRanksOutsideTheJob) {
  EXPECT_THROW(shm::connect({"job", 2, 2}), c10::ValueError);
  EXPECT_THROW(shm::connect({"job", -1, 2}), c10::ValueError);
  EXPECT_THROW(shm::connect({"job", 0, 0}), c10::ValueError);
  EXPECT_THROW(shm::connect({"job", 0, 241}), c10::ValueError);
}

TEST(Rendezvous, RejectsATimeoutOfZeroOrLess) {
  for (const int timeout_ms : {0, -1}) {
    try {
      shm::connect(options(new_job(), 0, 2, timeout_ms));
      ADD_FAILURE() << "accepted";
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(base::without_code(error.what_without_backtrace()),
                "connect: timeout must be above 0 ms; got " + std::to_string(timeout_ms));
    }
  }
}

// poll() has an int of milliseconds; 30 days exceed it.
TEST(Rendezvous, ATimeoutMayExceedTheMaximumOfPoll) {
  on_threads(2, [](int rank, const std::string& job) {
    shm::ConnectOptions month = options(job, rank, 2);
    month.timeout = std::chrono::hours(30 * 24);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(error_of([&] { shm::connect(month).barrier(); }), "no error");
  });
}

// The kernel delivers a process's signals to its first thread, here rank 0's.
TEST(Rendezvous, SignalsDoNotInterruptTheWait) {
  const std::string job = new_job();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(error_of([&] { shm::connect(options(job, 1, 2)); }), "no error");
  });
  const Alarms alarms;
  EXPECT_EQ(error_of([&] { shm::connect(options(job, 0, 2)); }), "no error");
  other.join();
}

constexpr base::Secret kSecret{{1, 2}};

/// Returns a message of another version of this program.
shm::Introduction of_another_version(shm::MessageType type) {
  shm::Introduction message = shm::Introduction::of(type);
  message.header.magic ^= 0x80;
  return message;
}

/// Introduces a rank of another version, which knows the secret.
void introduce_another_version(const base::Fd& socket, const std::string& job) {
  send_raw(socket, of_another_version(shm::MessageType::hello));
  const auto challenge = shm::receive_introduction(socket).message;
  ASSERT_TRUE(challenge);
  shm::Introduction proof = of_another_version(shm::MessageType::proof);
  proof.proof = shm::Connection::at_rank(socket, job, kSecret)
                    .proof(shm::Connection::Role::other_rank, shm::Nonce{}, challenge->nonce);
  send_raw(socket, proof);
}

TEST(Rendezvous, RejectsARankOfAnotherVersion) {
  const std::string job = new_job();
  std::string error;
  shm::ConnectOptions rank_0 = options(job, 0, 2);
  rank_0.secret = kSecret;
  std::thread coordinator([&] { error = error_of([&] { shm::connect(rank_0); }); });
  RawSocket peer(job);
  peer.wait_and_connect();
  introduce_another_version(peer.fd(), job);
  EXPECT_EQ(shm::receive_handshake(peer.fd()).kind, shm::ReceivedHandshake::Kind::reject);
  coordinator.join();
  EXPECT_TRUE(says(error, "the ranks run different versions of this program")) << error;
}

// Rank 0 sends all handshakes to rank 1 first, then detects that rank 2 has disconnected.
TEST(Rendezvous, ARankThatIsAlreadyConnectedGetsTheErrorOfRankZero) {
  const std::string job = new_job();
  std::thread coordinator([&] { error_of([&] { shm::connect(options(job, 0, 3)); }); });
  {
    const shm::Region region = shm::Region::create(3);
    RawSocket peer(job);
    peer.wait_and_connect();
    EXPECT_TRUE(shm::introduce(peer.fd(), {job, 2, 3}, ConnectDeadline(2, std::chrono::seconds(20))));
    EXPECT_EQ(shm::send_handshake(peer.fd(), shm::make_handshake({job, 2, 3}, region)), 0);
  }
  const Group group = shm::connect(options(job, 1, 3));
  std::string line;
  EXPECT_EQ(failure_of([&] { group.barrier(); }, line).peer, 2);
  EXPECT_TRUE(says(line, "rank 0 aborted: connect #0: rank 2 disconnected before all ranks had connected"))
      << line;
  coordinator.join();
}

/// Answers a rank's hello as a rank 0 that knows the secret, with `challenge`.
void prove_rank_0(const base::Fd& socket, const std::string& job, shm::Introduction challenge) {
  const auto hello = shm::receive_introduction(socket).message;
  ASSERT_TRUE(hello);
  challenge.proof = shm::Connection::at_rank_0(socket, job, base::Secret{})
                        .proof(shm::Connection::Role::rank_0, hello->nonce, challenge.nonce);
  send_raw(socket, challenge);
}

/// Returns the error of a rank 1 that connects to `rank_0`, which gets the connection and the job, and is the
/// cause.
std::string error_with(const std::function<void(const base::Fd&, const std::string&)>& rank_0) {
  const std::string job = new_job();
  RawSocket coordinator(job);
  coordinator.listen(1);
  std::string error;
  std::thread peer([&] { EXPECT_EQ(failure_of([&] { shm::connect(options(job, 1, 2)); }, error).peer, 0); });
  base::Fd socket = coordinator.accept();
  rank_0(socket, job);
  socket = base::Fd();
  peer.join();
  return error;
}

TEST(Rendezvous, ARankZeroOfAnotherVersionOrProgramIsAnImmediateError) {
  const std::string of_version = error_with([](const base::Fd& socket, const std::string& job) {
    prove_rank_0(socket, job, of_another_version(shm::MessageType::challenge));
  });
  EXPECT_TRUE(says(of_version, "the ranks run different versions of this program")) << of_version;
  const std::string of_program = error_with(
      [](const base::Fd& socket, const std::string&) { EXPECT_EQ(::send(socket.get(), "hello", 5, 0), 5); });
  EXPECT_TRUE(says(of_program, "another program answered at the socket of rank 0")) << of_program;
}

TEST(Rendezvous, OtherBytesAfterTheProofOfRankZeroAreAnImmediateError) {
  const std::string error = error_with([](const base::Fd& socket, const std::string& job) {
    prove_rank_0(socket, job, shm::Introduction::of(shm::MessageType::challenge));
    EXPECT_EQ(::send(socket.get(), "hello", 5, 0), 5);
  });
  EXPECT_TRUE(says(error, "another program answered at the socket of rank 0")) << error;
}

// It sends each rank the handshakes of all, one message each. A peer that has all of them waits for the rank,
// and learns from its region that rank 0 is the cause.
TEST(Rendezvous, ARankZeroThatExitsBetweenItsHandshakesIsNamedAtOnce) {
  std::optional<shm::Region> of_rank_1;
  const std::string error = error_with([&](const base::Fd& socket, const std::string& job) {
    prove_rank_0(socket, job, shm::Introduction::of(shm::MessageType::challenge));
    EXPECT_TRUE(shm::receive_introduction(socket).message);  // the rank's proof
    shm::Handshake handshake = shm::receive_handshake(socket).handshake;
    of_rank_1.emplace(shm::Region::map(std::move(handshake.region), handshake.info.region_bytes));
    const shm::Region region = shm::Region::create(2);
    EXPECT_EQ(shm::send_handshake(socket, shm::make_handshake(options(job, 0, 2), region)), 0);
  });
  EXPECT_TRUE(says(error, "rank 0 exited during the rendezvous")) << error;
  ASSERT_TRUE(of_rank_1);
  EXPECT_EQ(of_rank_1->control().abort.peer, 0);
  EXPECT_TRUE(says(of_rank_1->control().abort.reason, "rank 1 aborted: connect #0: rank 0 exited"));
}

TEST(Rendezvous, AStoreEntryOfAnotherVersionIsAnError) {
  c10d::HashStore store;
  store.set("shardwise/1/1", std::vector<uint8_t>{1, 2, 3});  // of rank 1
  const std::string error =
      error_of([&] { shm::rendezvous_via_store(store, /*rank=*/0, /*size=*/2, std::chrono::seconds(20)); });
  EXPECT_TRUE(says(error, "the ranks run different versions of this program")) << error;
}

TEST(Rendezvous, ARankOfAnotherNodeInTheStoreIsNamed) {
  PeerInfo elsewhere = local_peer_info(/*group=*/"", /*rank=*/1, /*size=*/2);
  elsewhere.node ^= 1;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&elsewhere);
  c10d::HashStore store;
  store.set("shardwise/1/1", std::vector<uint8_t>(bytes, bytes + sizeof(elsewhere)));
  const std::string error = test::error_text<c10::ValueError>(
      [&] { shm::rendezvous_via_store(store, /*rank=*/0, /*size=*/2, std::chrono::seconds(20)); });
  EXPECT_TRUE(says(error, "connect: ranks that share memory must be on one node")) << error;
  EXPECT_TRUE(says(error, "; got rank 0 on ")) << error;
  EXPECT_TRUE(says(error, ", rank 1 on ")) << error;
}

TEST(Rendezvous, AStoreWithoutARanksEntryNamesThatRank) {
  c10d::HashStore store;
  const std::string error = error_of(
      [&] { shm::rendezvous_via_store(store, /*rank=*/0, /*size=*/3, std::chrono::milliseconds(100)); });
  EXPECT_TRUE(says(error, "timed out waiting for rank 1")) << error;
}

// Here the name that every other rank enters into the store, the empty one, is that of a rank 0 at work.
TEST(Rendezvous, RanksWithAStoreUseTheNameThatRankZeroChose) {
  RawSocket other("");
  other.bind();  // unless another process of this test has it
  c10d::HashStore store;
  on_threads(2, [&](int rank, const std::string&) {
    EXPECT_EQ(error_of([&] { shm::rendezvous_via_store(store, rank, 2, std::chrono::seconds(20)); }),
              "no error");
  });
}

/// The ends of a connection.
std::pair<base::Fd, base::Fd> connected_sockets() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {base::Fd(ends[0]), base::Fd(ends[1])};
}

TEST(Rendezvous, AHandshakeHasItsTypeAndARegion) {
  const auto [ours, peers] = connected_sockets();
  const shm::Region region = shm::Region::create(2);
  shm::Handshake handshake = shm::make_handshake({"job", 1, 2}, region);
  EXPECT_EQ(shm::send_handshake(peers, handshake), 0);
  EXPECT_EQ(shm::receive_handshake(ours).kind, shm::ReceivedHandshake::Kind::handshake);
  send_raw(peers, handshake.info);  // without descriptors
  EXPECT_EQ(shm::receive_handshake(ours).kind, shm::ReceivedHandshake::Kind::unknown);
  handshake.info.header.type = shm::MessageType::hello;
  EXPECT_EQ(shm::send_handshake(peers, handshake), 0);
  EXPECT_EQ(shm::receive_handshake(ours).kind, shm::ReceivedHandshake::Kind::unknown);
}

// A call that succeeds leaves errno as an earlier one set it.
TEST(Rendezvous, AnEmptyMessageIsNoErrorWhateverErrnoSays) {
  const auto [ours, peers] = connected_sockets();
  EXPECT_EQ(::send(peers.get(), "", 0, 0), 0);
  EXPECT_EQ(::send(peers.get(), "next", 4, 0), 4);
  char bytes[4];
  iovec body{bytes, sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  errno = ECONNRESET;
  EXPECT_EQ(shm::receive_message(ours, message), 0);
}

// With a backlog of 0, the kernel queues one connection, and the connect of the next one blocks.
TEST(Rendezvous, ARankZeroThatAcceptsNoConnectionIsATimeout) {
  const std::string job = new_job();
  RawSocket coordinator(job), first(job);
  coordinator.listen(0);
  ASSERT_EQ(first.connect(), 0);
  const std::string error = error_of([&] { shm::connect(options(job, 1, 2, 100)); });
  EXPECT_TRUE(says(error, "timed out waiting for rank 0")) << error;
}

// As one does whose program is no part of this job, or a rank 0 that exits again and again.
TEST(Rendezvous, ARankZeroThatOnlyClosesConnectionsIsATimeout) {
  const std::string job = new_job();
  RawSocket coordinator(job);
  coordinator.listen(8);
  std::atomic<bool> is_over = false;
  std::thread closing([&] {
    while (!is_over) coordinator.accept();
  });
  const std::string error = error_of([&] { shm::connect(options(job, 1, 2, 200)); });
  EXPECT_TRUE(says(error, "timed out waiting for rank 0")) << error;
  is_over = true;
  EXPECT_EQ(RawSocket(job).connect(), 0);  // ends its last wait
  closing.join();
}

TEST(Rendezvous, JobsWhoseLongNamesDifferAtTheEndAreSeparate) {
  const std::string stem = new_job() + std::string(300, 'x');
  const auto run_job = [&](const std::string& job) {
    std::thread other([&] { shm::connect(options(job, 1, 2)).all_reduce(at::full({1}, 1.f)); });
    EXPECT_TRUE(equals(shm::connect(options(job, 0, 2)).all_reduce(at::full({1}, 2.f)), at::full({1}, 3.f)));
    other.join();
  };
  std::thread first([&] { run_job(stem + "a"); });
  run_job(stem + "b");
  first.join();
}

TEST(Rendezvous, SeveralGroupsOfTheSameRanksAreIndependent) {
  on_threads(3, [&](int rank, const std::string& job) {
    const Group first = shm::connect(options(job + "-1", rank, 3)),
                second = shm::connect(options(job + "-2", rank, 3));
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(equals(first.all_reduce(at::full({3}, 1.f)), at::full({3}, 3.f)));
      EXPECT_TRUE(equals(second.all_reduce(at::full({2000}, 2.f)), at::full({2000}, 6.f)));
    }
  });
}

TEST(Rendezvous, AJobCanConnectAgainAndAgain) {
  on_threads(3, [&](int rank, const std::string& job) {
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(
          equals(shm::connect(options(job, rank, 3)).all_reduce(at::full({1}, 1.f)), at::full({1}, 3.f)));
    }
  });
}

TEST(Rendezvous, EightRanksShareTwoCores) {
  cpu_set_t before, two;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&two);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &two);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(two), &two), 0);  // inherited by the threads
  on_threads(8, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 8));
    for (int i = 0; i < 100; ++i) {
      at::Tensor x = group.empty({i * 100}, at::kFloat).fill_(rank + 1);
      group.all_reduce_(x);
      EXPECT_TRUE(equals(x, at::full({i * 100}, 36.f)));
    }
  });
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace shardwise::comm::rendezvous_test
