// Rendezvous with strangers: processes with another secret or of another user, and those that say nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/comm/raw_socket.h"
#include "tests/comm/threads.h"

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
    EXPECT_TRUE(says(error, "rank 0 has another secret")) << error;
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

TEST(RendezvousStrangers, ARankZeroThatDoesNotKnowTheSecretIsAnImmediateError) {
  const std::string job = new_job();
  RawSocket coordinator(job);
  coordinator.listen(1);
  std::string error;
  std::thread peer(
      [&] { error = error_of([&] { shm::connect(with_secret(job, 1, 2, base::Secret::random())); }); });
  const base::Fd socket = coordinator.accept();
  const shm::Region region = shm::Region::create(2);
  EXPECT_EQ(shm::send_handshake(socket, shm::make_handshake({job, 0, 2}, region)), 0);
  peer.join();
  EXPECT_TRUE(says(error, "the process at the socket of rank 0 does not know the secret of this job"))
      << error;
}

TEST(RendezvousStrangers, SilentVisitorsDelayNoRank) {
  const std::string job = new_job();
  std::string error;
  std::thread first([&] { error = error_of([&] { shm::connect(options(job, 0, 2)).barrier(); }); });
  std::vector<RawSocket> visitors;
  for (int i = 0; i < 100; ++i) {
    visitors.emplace_back(job);
    while (visitors.back().connect() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(error_of([&] { shm::connect(options(job, 1, 2)).barrier(); }), "no error");
  first.join();
  EXPECT_EQ(error, "no error");
}

TEST(RendezvousStrangers, TheSocketsNameHidesTheJob) {
  EXPECT_FALSE(says(shm::socket_name("a-private-name"), "private"));
  EXPECT_NE(shm::socket_name("a"), shm::socket_name("b"));
}

// Needs root, to act as another user.
TEST(RendezvousOtherUser, ASocketOfAnotherUserIsNamedAtOnce) {
  constexpr uid_t kOther = 65534;
  if (getuid() != 0) GTEST_SKIP() << "only root can act as another user";
  const std::string job = new_job();
  RawSocket squatter(job);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {  // only system calls
    if (setuid(kOther) != 0) _exit(1);
    squatter.listen(1);
    if (write(ready[1], "", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  for (const int rank : {0, 1}) {
    const std::string error = error_of([&] { shm::connect(options(job, rank, 2)); });
    EXPECT_TRUE(says(error, "the socket of this job belongs to user 65534")) << error;
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  close(ready[0]), close(ready[1]);
}

}  // namespace
}  // namespace shardwise::comm::rendezvous_strangers_test
