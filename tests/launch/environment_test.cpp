#include "shardwise/comm/environment.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace shardwise::comm {
namespace {

constexpr const char* kAll[] = {"SHARDWISE_RANK",
                                "SHARDWISE_WORLD_SIZE",
                                "SHARDWISE_JOB",
                                "RANK",
                                "WORLD_SIZE",
                                "LOCAL_RANK",
                                "LOCAL_WORLD_SIZE",
                                "MASTER_ADDR",
                                "MASTER_PORT",
                                "TORCHELASTIC_RUN_ID",
                                "TORCHELASTIC_RESTART_COUNT"};

using Variables = std::map<std::string, std::string>;

void clear() {
  for (const char* variable : kAll) unsetenv(variable);
}

class Environment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static Place place_with(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return place_from_environment();
  }

  static void expect_refused(const Variables& variables, const std::string& part) {
    try {
      place_with(variables);
      FAIL() << "taken, but expected: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find(part), std::string::npos) << error.what();
    }
  }

  // What torchrun --standalone --nproc-per-node 4 sets for its third rank.
  static Variables torchrun(const Variables& changes = {}) {
    Variables variables{{"RANK", "2"},
                        {"WORLD_SIZE", "4"},
                        {"LOCAL_RANK", "2"},
                        {"LOCAL_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "localhost"},
                        {"MASTER_PORT", "29500"},
                        {"TORCHELASTIC_RUN_ID", "none"},
                        {"TORCHELASTIC_RESTART_COUNT", "1"}};
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  }

  static Variables launcher(const Variables& changes = {}) {
    Variables variables{
        {"SHARDWISE_RANK", "1"}, {"SHARDWISE_WORLD_SIZE", "3"}, {"SHARDWISE_JOB", "launch/7"}};
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  }
};

TEST_F(Environment, nothing_set_is_a_job_of_one) {
  const Place place = place_with({});
  EXPECT_EQ(place.by, Place::By::self);
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world_size, 1);
  EXPECT_EQ(place.local_size, 1);
}

TEST_F(Environment, the_launcher) {
  const Place place = place_with(launcher());
  EXPECT_EQ(place.by, Place::By::launcher);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.world_size, 3);
  EXPECT_EQ(place.local_size, 3);
  EXPECT_EQ(place.job, "launch/7");
}

TEST_F(Environment, torchrun) {
  const Place place = place_with(torchrun());
  EXPECT_EQ(place.by, Place::By::torchrun);
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.local_rank, 2);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_size, 4);
}

TEST_F(Environment, jobs_of_torchrun_do_not_mix) {
  const std::string job = place_with(torchrun()).job;
  EXPECT_EQ(place_with(torchrun({{"RANK", "0"}, {"LOCAL_RANK", "0"}})).job, job);
  for (const char* variable :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    EXPECT_NE(place_with(torchrun({{variable, "7"}})).job, job) << variable;
  }
}

TEST_F(Environment, our_launcher_comes_before_torchrun) {
  Variables both = torchrun();
  both.merge(launcher());
  EXPECT_EQ(place_with(both).by, Place::By::launcher);
}

TEST_F(Environment, every_variable_is_needed) {
  for (const auto& [name, value] : torchrun()) {
    if (name == "RANK") continue;
    Variables variables = torchrun();
    variables.erase(name);
    expect_refused(variables, "environment: torchrun sets all of its variables; got no " + name);
  }
  expect_refused({{"SHARDWISE_RANK", "0"}}, "got no SHARDWISE_WORLD_SIZE");
}

TEST_F(Environment, what_is_no_number_or_out_of_range_is_refused) {
  for (const char* text : {"", "x", "-1", "1x", " 1", "1.0", "99999999999"}) {
    expect_refused(torchrun({{"RANK", text}}),
                   "environment: RANK is a whole number, at least 0; got '" + std::string(text) + "'");
  }
  expect_refused(torchrun({{"WORLD_SIZE", "0"}}), "WORLD_SIZE is a whole number, at least 1; got '0'");
  expect_refused(torchrun({{"RANK", "4"}}), "RANK is below WORLD_SIZE; got 4 and 4");
  expect_refused(torchrun({{"LOCAL_RANK", "5"}}), "LOCAL_RANK is below LOCAL_WORLD_SIZE; got 5 and 4");
  expect_refused(launcher({{"SHARDWISE_RANK", "3"}}),
                 "SHARDWISE_RANK is below SHARDWISE_WORLD_SIZE; got 3 and 3");
}

TEST_F(Environment, several_hosts_are_refused) {
  expect_refused(torchrun({{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}), "got 4 ranks, 2 of them here");
}

TEST_F(Environment, the_world_is_the_product_of_the_degrees) {
  const Place place = place_with(torchrun());
  EXPECT_NO_THROW(check_world_size(place, 4));
  try {
    check_world_size(place, 2);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(
        error.what_without_backtrace(),
        "launch: the number of ranks equals the product of the degrees of parallelism; got 4 from torchrun "
        "for degrees of 2; run torchrun with --nproc-per-node 2");
  }
}

}  // namespace
}  // namespace shardwise::comm
