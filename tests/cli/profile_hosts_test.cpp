// The flags of `shardwise profile` about emulated hosts: refusals, and the model of the network. Ranks on
// such hosts run in tests/mpi/emulated_hosts.sh, which needs root.
#include "shardwise/cli/profile_hosts.h"

#include "shardwise/cli/child.h"
#include "tests/cli/trained_model.h"
#include "tests/support/environment.h"

namespace shardwise::cli::profile_hosts_test {
namespace {

constexpr double kDelay = 50e-6, kRate = 10e9;  // seconds, and bits per second

plan::Collectives one_all_reduce(int64_t bytes) {
  plan::Collectives collectives;
  collectives.all_reduce = {.calls = 1, .bytes = bytes};
  return collectives;
}

double seconds(int64_t hosts, int64_t ranks_per_host, const plan::Collectives& collectives,
               int64_t element_bytes) {
  const HostNetwork network{hosts, ranks_per_host, kDelay, kRate};
  return network_seconds(network, hosts * ranks_per_host, collectives, element_bytes).value();
}

// An all_reduce of n bytes is an announcement and two halves. With one rank a host each host sends the n
// bytes of a ring of two, and with two ranks a host too, but 16-bit elements as half as many bytes again.
TEST(ProfileHosts, AnAllReduceTakesThreeDelaysAndItsBytes) {
  constexpr int64_t n = 8'000'000;
  const double wire = n * 8 / kRate;
  EXPECT_NEAR(seconds(2, 1, one_all_reduce(n), 4), 3 * kDelay + wire, 1e-12);
  EXPECT_NEAR(seconds(2, 1, one_all_reduce(n), 2), 3 * kDelay + wire, 1e-12);
  // Each of four ranks sends 2·3/4·n.
  EXPECT_NEAR(seconds(2, 2, one_all_reduce(n * 3 / 2), 4), 3 * kDelay + wire, 1e-12);
  EXPECT_NEAR(seconds(2, 2, one_all_reduce(n * 3 / 2), 2), 3 * kDelay + 1.5 * wire, 1e-12);
  // Each host of four exchanges 2·3/4·n.
  EXPECT_NEAR(seconds(4, 1, one_all_reduce(n * 3 / 2), 4), 3 * kDelay + 1.5 * wire, 1e-12);
}

TEST(ProfileHosts, EveryCallHasItsDelays) {
  plan::Collectives collectives;
  collectives.all_gather = {.calls = 2, .bytes = 4'000'000};
  collectives.reduce_scatter = {.calls = 3, .bytes = 6'000'000};
  EXPECT_NEAR(seconds(2, 1, collectives, 4), 5 * 2 * kDelay + 80e6 / kRate, 1e-12);
}

TEST(ProfileHosts, WithoutARateOrWithUnevenHostsThereIsNoModel) {
  const plan::Collectives call = one_all_reduce(100);
  EXPECT_FALSE(network_seconds({2, 1, kDelay, std::nullopt}, 2, call, 4));
  const HostNetwork network{2, 2, kDelay, kRate};
  EXPECT_FALSE(network_seconds(network, 2, call, 4));  // on one host
  EXPECT_FALSE(network_seconds(network, 3, call, 4));
  EXPECT_TRUE(network_seconds(network, 4, call, 4));
}

TEST(ProfileHosts, GroupsAreMarkedWhereTheyCrossHosts) {
  const HostNetwork network{3, 2};
  EXPECT_EQ(hosts_text(network, 1), "1");
  EXPECT_EQ(hosts_text(network, 2), "1");
  EXPECT_EQ(hosts_text(network, 3), "2, crosses");
  EXPECT_EQ(hosts_text(network, 6), "3, crosses");
  EXPECT_EQ(to_text({2, 1, kDelay, kRate}), "2 emulated hosts of 1 rank, 50 us, 10 Gbit/s");
}

std::optional<HostNetwork> network(const HostOptions& o) {
  return network_of("profile mlp", o, {1, 2, 4});
}

TEST(ProfileHosts, QuantitiesAreReadAsTcWritesThem) {
  EXPECT_FALSE(network({}));
  const HostNetwork found = network({2, "1.5ms", "500mbit"}).value();
  EXPECT_EQ(found.hosts, 2);
  EXPECT_EQ(found.ranks_per_host, 2);
  EXPECT_DOUBLE_EQ(found.delay_seconds.value(), 1.5e-3);
  EXPECT_DOUBLE_EQ(found.bits_per_second.value(), 5e8);
  EXPECT_DOUBLE_EQ(network({4, "10s", "1gbit"})->delay_seconds.value(), 10);
  EXPECT_DOUBLE_EQ(network({4, "1us", {}})->delay_seconds.value(), 1e-6);
  EXPECT_FALSE(network({4, {}, {}})->bits_per_second);
}

TEST(ProfileHosts, RefusesBadInput) {
  for (const char* what : {"mlp", "block", "step"}) {
    const auto refused = [&](Words flags, const std::string& named) {
      flags.insert(flags.begin(), {"profile", what, "--ranks", "1,2,4"});
      if (std::string(what) != "mlp") flags.insert(flags.end(), {"--model", "tiny", "--seq-len", "8"});
      expect_refused(flags, {"profile " + std::string(what) + ": " + named});
    };
    refused({"--hosts", "1"}, "--hosts must be from 2 to 64; got 1");
    refused({"--hosts", "3"}, "--hosts needs a largest number of ranks that it divides; got 3 hosts for 4");
    refused({"--delay", "50us"}, "--delay needs --hosts; got 50us alone");
    refused({"--rate", "1gbit"}, "--rate needs --hosts; got 1gbit alone");
    for (const char* delay : {"50", "us", "0us", "-1us", "50 us", "nanus", "11s", "0.1us", "1usx"})
      refused({"--hosts", "2", "--delay=" + std::string(delay)},
              "--delay must be from 1us to 10s, such as 50us; got " + std::string(delay));
    for (const char* rate : {"10", "10g", "0gbit", "1001gbit", "999kbit", "infgbit"})
      refused({"--hosts", "2", "--rate", rate},
              "--rate must be from 1mbit to 1000gbit, such as 10gbit; got " + std::string(rate));
    refused({"--hosts", "2", "--machine", "a100"},
            "--machine computes, and measures nothing; got a flag about hosts");
  }
}

TEST(ProfileHosts, RefusesRanksOfAnotherLauncher) {
  Program program({SHARDWISE_PROGRAM, "profile", "mlp", "--ranks", "1,2", "--hosts", "2"},
                  {.environment = testing::torchrun_environment(0, 2, "hosts")});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 2);
  EXPECT_PRED2(contains, program.errors(),
               "profile: --hosts needs to start the ranks itself; got 2 ranks of another launcher");
}

// What is missing is named before any rank or namespace is made.
TEST(ProfileHosts, RefusesAMachineWithoutItsPrograms) {
  Program program({SHARDWISE_PROGRAM, "profile", "mlp", "--ranks", "1,2", "--hosts", "2"},
                  {.environment = {"PATH=/nowhere"}});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 2);
  EXPECT_PRED2(contains, program.errors(), "profile: --hosts needs ");
  EXPECT_EQ(program.output(), "");
}

TEST(Child, ReturnsTheFirstLineOfAFailure) {
  EXPECT_FALSE(complaint_of({"sh", "-c", "echo fine"}));
  EXPECT_EQ(complaint_of({"sh", "-c", "echo first >&2; echo second; exit 3"}), "first");
  EXPECT_EQ(complaint_of({"sh", "-c", "kill -9 $$"}), "no message, and a failure");
  EXPECT_PRED2(contains, complaint_of({"/nowhere/program"}).value(), "No such file");
  EXPECT_TRUE(program_in_path({"/no", "sh"}));
  EXPECT_FALSE(program_in_path({"no-such-program"}));
}

TEST(Child, EndsWithItsObject) {
  const Scratch scratch;
  const std::string file = scratch / "ended";
  { const Child reader({"sh", "-c", "read -r _; echo done >\"$0\"", file}, {.has_pipe = true}); }
  EXPECT_TRUE(fs::exists(file));
  Child sleeper({"sleep", "100"}, {});
  EXPECT_FALSE(sleeper.wait_for(std::chrono::milliseconds(10)));
}

TEST(Child, HasVariablesInPlaceOfThisProcess) {
  testing::Environment environment;
  environment.set("SHARDWISE_CHILD_TEST", "old");
  Child child({"sh", "-c", "[ \"$SHARDWISE_CHILD_TEST\" = new ]"},
              {.environment = {"SHARDWISE_CHILD_TEST=new"}});
  EXPECT_EQ(child.wait_for(std::chrono::seconds(20)), 0);
}

}  // namespace
}  // namespace shardwise::cli::profile_hosts_test
