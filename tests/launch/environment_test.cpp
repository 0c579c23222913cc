#include "shardwise/comm/environment.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "shardwise/comm/parent_process.h"

namespace shardwise::comm::environment_test {
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
                                "TORCHELASTIC_RESTART_COUNT",
                                "OMPI_COMM_WORLD_RANK",
                                "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE",
                                "PMIX_NAMESPACE",
                                "PMI_RANK",
                                "PMI_SIZE",
                                "MPI_LOCALRANKID",
                                "MPI_LOCALNRANKS",
                                "SLURM_PROCID",
                                "SLURM_STEP_NUM_TASKS",
                                "SLURM_STEP_NUM_NODES",
                                "SLURM_JOB_ID",
                                "SLURM_STEP_ID",
                                "SHARDWISE_NODES"};

using Variables = std::map<std::string, std::string>;

void clear() {
  for (const char* variable : kAll) unsetenv(variable);
}

class Environment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static LaunchContext place_with(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return launch_context_from_env();
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

  // What mpirun -n 4 of Open MPI 4.1 sets for its third rank.
  static Variables open_mpi(const Variables& changes = {}) {
    Variables variables{{"OMPI_COMM_WORLD_RANK", "2"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_NAMESPACE", "1508507649"}};
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  }

  // What mpiexec.hydra -n 4 of MPICH 4.0 sets for its third rank.
  static Variables hydra(const Variables& changes = {}) {
    Variables variables{
        {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  }

  static Variables srun(const Variables& changes = {}) {
    Variables variables{{"SLURM_PROCID", "2"},
                        {"SLURM_STEP_NUM_TASKS", "4"},
                        {"SLURM_STEP_NUM_NODES", "1"},
                        {"SLURM_JOB_ID", "7"},
                        {"SLURM_STEP_ID", "0"}};
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
  const LaunchContext place = place_with({});
  EXPECT_EQ(place.launcher, LaunchContext::Launcher::self);
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world_size, 1);
  EXPECT_EQ(place.local_size, 1);
}

TEST_F(Environment, the_launcher) {
  const LaunchContext place = place_with(launcher());
  EXPECT_EQ(place.launcher, LaunchContext::Launcher::launcher);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.world_size, 3);
  EXPECT_EQ(place.local_size, 3);
  EXPECT_EQ(place.job, "launch/7");
}

TEST_F(Environment, torchrun) {
  const LaunchContext place = place_with(torchrun());
  EXPECT_EQ(place.launcher, LaunchContext::Launcher::torchrun);
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

TEST_F(Environment, mpirun_and_srun) {
  for (const Variables& variables : {open_mpi(), hydra(), srun()}) {
    const LaunchContext place = place_with(variables);
    EXPECT_EQ(place.launcher, variables.contains("SLURM_PROCID") ? LaunchContext::Launcher::srun
                                                                 : LaunchContext::Launcher::mpirun);
    EXPECT_EQ(place.rank, 2);
    EXPECT_EQ(place.world_size, 4);
    EXPECT_EQ(place.local_rank, 2);
    EXPECT_EQ(place.local_size, 4);
    EXPECT_NE(place.job, "");
  }
}

TEST_F(Environment, jobs_of_mpirun_and_srun_do_not_mix) {
  const std::string job = place_with(open_mpi()).job;
  EXPECT_EQ(place_with(open_mpi({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})).job,
            job);
  EXPECT_NE(place_with(open_mpi({{"PMIX_NAMESPACE", "7"}})).job, job);
  EXPECT_NE(place_with(srun()).job, place_with(srun({{"SLURM_STEP_ID", "1"}})).job);
  EXPECT_NE(place_with(srun()).job, place_with(srun({{"SLURM_JOB_ID", "8"}})).job);
  EXPECT_EQ(place_with(hydra()).job, place_with(hydra({{"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "1"}})).job);
  EXPECT_NE(place_with(hydra()).job, place_with(hydra({{"SHARDWISE_JOB", "mine"}})).job);
}

// Hydra names no job: all ranks of a host have the same parent, and other jobs have others.
TEST_F(Environment, children_of_one_process_name_it_alike) {
  const auto named_by_child = [](bool behind_another_process) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const pid_t grandchild = behind_another_process ? fork() : 0;
      if (grandchild > 0) _exit(waitpid(grandchild, nullptr, 0) < 0);
      const std::string name = parent_process();
      _exit(write(ends[1], name.data(), name.size()) < 0);
    }
    close(ends[1]);
    waitpid(child, nullptr, 0);
    char name[64] = {};
    EXPECT_GT(read(ends[0], name, sizeof name - 1), 0);
    close(ends[0]);
    return std::string(name);
  };
  const std::string name = named_by_child(false);
  EXPECT_TRUE(name.starts_with(std::to_string(getpid()) + "-")) << name;
  EXPECT_EQ(named_by_child(false), name);
  EXPECT_NE(named_by_child(true), name);
}

// A batch script has srun's variables too, in a step of one task.
TEST_F(Environment, one_task_of_slurm_may_launch_ranks) {
  EXPECT_EQ(place_with(srun({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})).by,
            LaunchContext::Launcher::self);
}

TEST_F(Environment, inner_starters_come_first) {
  Variables all = srun();
  EXPECT_EQ(place_with(all).by, LaunchContext::Launcher::srun);
  all.merge(hydra());
  EXPECT_EQ(place_with(all).by, LaunchContext::Launcher::mpirun);
  all.merge(open_mpi({{"OMPI_COMM_WORLD_RANK", "3"}}));
  EXPECT_EQ(place_with(all).rank, 3);
  all.merge(torchrun());
  EXPECT_EQ(place_with(all).by, LaunchContext::Launcher::torchrun);
  all.merge(launcher());
  EXPECT_EQ(place_with(all).by, LaunchContext::Launcher::launcher);
}

TEST_F(Environment, pretended_hosts_take_the_ranks_in_order) {
  const int hosts[] = {0, 0, 0, 1, 1}, local_ranks[] = {0, 1, 2, 0, 1}, local_sizes[] = {3, 3, 3, 2, 2};
  for (int rank = 0; rank < 5; ++rank) {
    const LaunchContext place = place_with(launcher(
        {{"SHARDWISE_RANK", std::to_string(rank)}, {"SHARDWISE_WORLD_SIZE", "5"}, {"SHARDWISE_NODES", "2"}}));
    EXPECT_EQ(place.hosts, 2);
    EXPECT_EQ(place.host, hosts[rank]);
    EXPECT_EQ(place.local_rank, local_ranks[rank]);
    EXPECT_EQ(place.local_size, local_sizes[rank]);
    for (int peer = 0; peer < 5; ++peer) EXPECT_EQ(place.node_of(peer), hosts[peer]);
  }
  expect_refused(launcher({{"SHARDWISE_NODES", "4"}}),
                 "SHARDWISE_NODES is at most the number of ranks; got 4 for 3");
  expect_refused(launcher({{"SHARDWISE_NODES", "0"}}),
                 "SHARDWISE_NODES is a whole number, at least 1; got '0'");
}

TEST_F(Environment, our_launcher_comes_before_torchrun) {
  Variables both = torchrun();
  both.merge(launcher());
  EXPECT_EQ(place_with(both).by, LaunchContext::Launcher::launcher);
}

TEST_F(Environment, every_variable_is_needed) {
  for (const auto& [name, value] : torchrun()) {
    if (name == "RANK") continue;
    Variables variables = torchrun();
    variables.erase(name);
    expect_refused(variables, "environment: torchrun sets all of its variables; got no " + name);
  }
  expect_refused({{"SHARDWISE_RANK", "0"}}, "got no SHARDWISE_WORLD_SIZE");
  for (const auto& all : {open_mpi(), hydra(), srun()}) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_PROCID"}) {
      Variables variables = all;
      if (variables.erase(name) > 0) expect_refused(variables, std::string("got no ") + name);
    }
  }
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

TEST_F(Environment, a_host_that_holds_more_than_the_job_is_refused) {
  expect_refused(torchrun({{"LOCAL_WORLD_SIZE", "5"}}),
                 "environment: LOCAL_WORLD_SIZE is at most WORLD_SIZE; got 5 and 4");
  expect_refused(torchrun({{"LOCAL_RANK", "3"}}), "environment: LOCAL_RANK is at most RANK; got 3 and 2");
  expect_refused(hydra({{"MPI_LOCALNRANKS", "8"}}), "MPI_LOCALNRANKS is at most PMI_SIZE; got 8 and 4");
  expect_refused(open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "1"}}),
                 "OMPI_COMM_WORLD_LOCAL_RANK is at most OMPI_COMM_WORLD_RANK; got 2 and 1");
}

TEST_F(Environment, several_hosts_are_refused_but_for_open_mpi) {
  expect_refused(
      torchrun({{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
      "got 4 ranks, 2 of them here; let torchrun use one host, or start the ranks by Open MPI's mpirun");
  expect_refused(hydra({{"MPI_LOCALNRANKS", "3"}}), "got 4 ranks, 3 of them here; let mpirun use one host");
  expect_refused(srun({{"SLURM_STEP_NUM_NODES", "2"}}), "got 4 ranks on 2; let srun use one host");
}

TEST_F(Environment, open_mpi_may_spread_the_ranks) {
  const LaunchContext here = place_with(open_mpi()),
                      apart = place_with(open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}));
  EXPECT_FALSE(here.is_multi_node);
  EXPECT_FALSE(here.may_span_nodes({0, 1, 2, 3}));
  EXPECT_TRUE(apart.is_multi_node);
  EXPECT_EQ(apart.local_rank, 2);
  EXPECT_EQ(apart.local_size, 3);
  EXPECT_TRUE(apart.may_span_nodes({0, 1}));
  EXPECT_FALSE(apart.may_span_nodes({1}));
  expect_refused(open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"SHARDWISE_NODES", "2"}}),
                 "SHARDWISE_NODES makes one machine play several; got 2 for 4 ranks, 3 of them here");
}

TEST_F(Environment, pretended_hosts_are_crossed_by_those_who_are_on_two) {
  const LaunchContext place = place_with(open_mpi({{"SHARDWISE_NODES", "2"}}));
  EXPECT_FALSE(place.may_span_nodes({0, 1}));
  EXPECT_TRUE(place.may_span_nodes({1, 2}));
}

TEST_F(Environment, the_world_is_the_product_of_the_degrees) {
  const LaunchContext place = place_with(torchrun());
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
  const auto complaint = [](const Variables& variables) -> std::string {
    try {
      check_world_size(place_with(variables), 3);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "none";
  };
  EXPECT_NE(complaint(hydra()).find("got 4 from mpirun for degrees of 3; run mpirun with -n 3"),
            std::string::npos);
  EXPECT_NE(complaint(srun()).find("got 4 from srun for degrees of 3; run srun with --ntasks 3"),
            std::string::npos);
}

}  // namespace
}  // namespace shardwise::comm::environment_test
