#include "shardwise/launch/environment.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::launch::environment_test {
namespace {

constexpr const char* kAll[] = {"SHARDWISE_RANK",
                                "SHARDWISE_WORLD_SIZE",
                                "SHARDWISE_JOB",
                                "SHARDWISE_SECRET",
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

  static LaunchContext context_with(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return launch_context_from_env();
  }

  static void expect_refused(const Variables& variables, const std::string& part) {
    try {
      context_with(variables);
      FAIL() << "accepted, but expected: " << part;
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

TEST_F(Environment, no_variables_mean_a_job_of_one) {
  const LaunchContext context = context_with({});
  EXPECT_EQ(context.launcher, LaunchContext::Launcher::self);
  EXPECT_EQ(context.rank, 0);
  EXPECT_EQ(context.world_size, 1);
  EXPECT_EQ(context.local_size, 1);
}

TEST_F(Environment, a_secret_is_32_hexadecimal_digits) {
  EXPECT_EQ(context_with({}).secret, base::Secret());
  const std::string text = "0123456789abcdef0000000000000001";
  for (const Variables& started_by : {torchrun(), srun(), launcher()}) {
    Variables variables = started_by;
    variables["SHARDWISE_SECRET"] = text;
    const base::Secret secret = context_with(variables).secret;
    EXPECT_EQ(secret.words, (std::array<uint64_t, 2>{0x0123456789abcdef, 1}));
    EXPECT_EQ(secret.text(), text);
  }
  for (const char* wrong : {"", "1", "0123456789abcdef000000000000000g", "0123456789abcdef00000000000000011",
                            "0x23456789abcdef0000000000000001", "-123456789abcdef0000000000000001"}) {
    try {
      context_with({{"SHARDWISE_SECRET", wrong}});
      ADD_FAILURE() << wrong;
    } catch (const c10::ValueError& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_NE(message.find("SHARDWISE_SECRET must have 32 hexadecimal digits"), std::string::npos)
          << message;
      const bool is_printed = strlen(wrong) > 16 && message.find(wrong) != std::string::npos;
      EXPECT_FALSE(is_printed) << message;
    }
  }
}

TEST_F(Environment, the_launcher) {
  const LaunchContext context = context_with(launcher());
  EXPECT_EQ(context.launcher, LaunchContext::Launcher::launcher);
  EXPECT_EQ(context.rank, 1);
  EXPECT_EQ(context.local_rank, 1);
  EXPECT_EQ(context.world_size, 3);
  EXPECT_EQ(context.local_size, 3);
  EXPECT_EQ(context.job, "launch/7");
}

TEST_F(Environment, torchrun) {
  const LaunchContext context = context_with(torchrun());
  EXPECT_EQ(context.launcher, LaunchContext::Launcher::torchrun);
  EXPECT_EQ(context.rank, 2);
  EXPECT_EQ(context.local_rank, 2);
  EXPECT_EQ(context.world_size, 4);
  EXPECT_EQ(context.local_size, 4);
}

TEST_F(Environment, jobs_of_torchrun_do_not_mix) {
  const std::string job = context_with(torchrun()).job;
  EXPECT_EQ(context_with(torchrun({{"RANK", "0"}, {"LOCAL_RANK", "0"}})).job, job);
  for (const char* variable :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    EXPECT_NE(context_with(torchrun({{variable, "7"}})).job, job) << variable;
  }
}

TEST_F(Environment, mpirun_and_srun) {
  for (const Variables& variables : {open_mpi(), hydra(), srun()}) {
    const LaunchContext context = context_with(variables);
    EXPECT_EQ(context.launcher, variables.contains("SLURM_PROCID") ? LaunchContext::Launcher::srun
                                                                   : LaunchContext::Launcher::mpirun);
    EXPECT_EQ(context.rank, 2);
    EXPECT_EQ(context.world_size, 4);
    EXPECT_EQ(context.local_rank, 2);
    EXPECT_EQ(context.local_size, 4);
    EXPECT_NE(context.job, "");
  }
}

TEST_F(Environment, jobs_of_mpirun_and_srun_do_not_mix) {
  const std::string job = context_with(open_mpi()).job;
  EXPECT_EQ(context_with(open_mpi({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})).job,
            job);
  EXPECT_NE(context_with(open_mpi({{"PMIX_NAMESPACE", "7"}})).job, job);
  EXPECT_NE(context_with(srun()).job, context_with(srun({{"SLURM_STEP_ID", "1"}})).job);
  EXPECT_NE(context_with(srun()).job, context_with(srun({{"SLURM_JOB_ID", "8"}})).job);
  EXPECT_EQ(context_with(hydra()).job,
            context_with(hydra({{"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "1"}})).job);
  EXPECT_NE(context_with(hydra()).job, context_with(hydra({{"SHARDWISE_JOB", "mine"}})).job);
}

// Hydra names no job: all ranks of a node have the same parent, and other jobs have other parents.
TEST_F(Environment, children_of_one_process_derive_the_same_name) {
  const auto name_from_child = [](bool behind_another_process) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const pid_t grandchild = behind_another_process ? fork() : 0;
      if (grandchild > 0) _exit(waitpid(grandchild, nullptr, 0) < 0);
      const std::string name = context_with(hydra()).job;
      _exit(write(ends[1], name.data(), name.size()) < 0);
    }
    close(ends[1]);
    waitpid(child, nullptr, 0);
    char name[64] = {};
    EXPECT_GT(read(ends[0], name, sizeof name - 1), 0);
    close(ends[0]);
    return std::string(name);
  };
  const std::string name = name_from_child(false);
  EXPECT_TRUE(name.starts_with("mpirun/" + std::to_string(getpid()) + "-")) << name;
  EXPECT_EQ(name_from_child(false), name);
  EXPECT_NE(name_from_child(true), name);
}

// A batch script has srun's variables too, in a step of one task.
TEST_F(Environment, a_slurm_step_of_one_task_may_launch_ranks) {
  EXPECT_EQ(context_with(srun({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})).launcher,
            LaunchContext::Launcher::self);
}

TEST_F(Environment, inner_launchers_take_precedence) {
  Variables all = srun();
  EXPECT_EQ(context_with(all).launcher, LaunchContext::Launcher::srun);
  all.merge(hydra());
  EXPECT_EQ(context_with(all).launcher, LaunchContext::Launcher::mpirun);
  all.merge(open_mpi({{"OMPI_COMM_WORLD_RANK", "3"}}));
  EXPECT_EQ(context_with(all).rank, 3);
  all.merge(torchrun());
  EXPECT_EQ(context_with(all).launcher, LaunchContext::Launcher::torchrun);
  all.merge(launcher());
  EXPECT_EQ(context_with(all).launcher, LaunchContext::Launcher::launcher);
}

TEST_F(Environment, simulated_nodes_are_filled_in_rank_order) {
  const int nodes[] = {0, 0, 0, 1, 1}, local_ranks[] = {0, 1, 2, 0, 1}, local_sizes[] = {3, 3, 3, 2, 2};
  for (int rank = 0; rank < 5; ++rank) {
    const LaunchContext context = context_with(launcher(
        {{"SHARDWISE_RANK", std::to_string(rank)}, {"SHARDWISE_WORLD_SIZE", "5"}, {"SHARDWISE_NODES", "2"}}));
    EXPECT_EQ(context.nodes, 2);
    EXPECT_EQ(context.node, nodes[rank]);
    EXPECT_EQ(context.local_rank, local_ranks[rank]);
    EXPECT_EQ(context.local_size, local_sizes[rank]);
    for (int peer = 0; peer < 5; ++peer) EXPECT_EQ(context.node_of(peer), nodes[peer]);
  }
  expect_refused(launcher({{"SHARDWISE_NODES", "4"}}),
                 "SHARDWISE_NODES must be at most the number of ranks; got 4 for 3");
  expect_refused(launcher({{"SHARDWISE_NODES", "0"}}),
                 "SHARDWISE_NODES must be an integer of at least 1; got '0'");
}

TEST_F(Environment, our_launcher_takes_precedence_over_torchrun) {
  Variables both = torchrun();
  both.merge(launcher());
  EXPECT_EQ(context_with(both).launcher, LaunchContext::Launcher::launcher);
}

TEST_F(Environment, every_variable_is_required) {
  for (const auto& [name, value] : torchrun()) {
    if (name == "RANK") continue;
    Variables variables = torchrun();
    variables.erase(name);
    expect_refused(variables, "environment: all variables of torchrun must be set; got no " + name);
  }
  expect_refused({{"SHARDWISE_RANK", "0"}}, "got no SHARDWISE_WORLD_SIZE");
  for (const auto& all : {open_mpi(), hydra(), srun()}) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_PROCID"}) {
      Variables variables = all;
      if (variables.erase(name) > 0) expect_refused(variables, std::string("got no ") + name);
    }
  }
}

TEST_F(Environment, a_value_that_is_not_a_number_or_out_of_range_is_refused) {
  for (const char* text : {"", "x", "-1", "1x", " 1", "1.0", "99999999999"}) {
    expect_refused(torchrun({{"RANK", text}}),
                   "environment: RANK must be an integer of at least 0; got '" + std::string(text) + "'");
  }
  expect_refused(torchrun({{"WORLD_SIZE", "0"}}), "WORLD_SIZE must be an integer of at least 1; got '0'");
  expect_refused(torchrun({{"RANK", "4"}}), "RANK must be below WORLD_SIZE; got 4 and 4");
  expect_refused(torchrun({{"LOCAL_RANK", "5"}}), "LOCAL_RANK must be below LOCAL_WORLD_SIZE; got 5 and 4");
  expect_refused(launcher({{"SHARDWISE_RANK", "3"}}),
                 "SHARDWISE_RANK must be below SHARDWISE_WORLD_SIZE; got 3 and 3");
}

TEST_F(Environment, a_node_with_more_ranks_than_the_job_is_refused) {
  expect_refused(torchrun({{"LOCAL_WORLD_SIZE", "5"}}),
                 "environment: LOCAL_WORLD_SIZE must be at most WORLD_SIZE; got 5 and 4");
  expect_refused(torchrun({{"LOCAL_RANK", "3"}}),
                 "environment: LOCAL_RANK must be at most RANK; got 3 and 2");
  expect_refused(hydra({{"MPI_LOCALNRANKS", "8"}}), "MPI_LOCALNRANKS must be at most PMI_SIZE; got 8 and 4");
  expect_refused(open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "1"}}),
                 "OMPI_COMM_WORLD_LOCAL_RANK must be at most OMPI_COMM_WORLD_RANK; got 2 and 1");
}

TEST_F(Environment, multi_node_jobs_are_refused_except_by_open_mpi) {
  expect_refused(torchrun({{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
                 "got 4 ranks, 2 of them on this node; let torchrun use one node, or start the ranks with "
                 "Open MPI's mpirun");
  expect_refused(hydra({{"MPI_LOCALNRANKS", "3"}}),
                 "got 4 ranks, 3 of them on this node; let mpirun use one node");
  expect_refused(srun({{"SLURM_STEP_NUM_NODES", "2"}}), "got 4 ranks on 2 nodes; let srun use one node");
}

TEST_F(Environment, open_mpi_may_start_multi_node_jobs) {
  const LaunchContext here = context_with(open_mpi()),
                      multi_node = context_with(open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}));
  EXPECT_FALSE(here.is_multi_node);
  EXPECT_FALSE(here.may_span_nodes({0, 1, 2, 3}));
  EXPECT_TRUE(multi_node.is_multi_node);
  EXPECT_EQ(multi_node.local_rank, 2);
  EXPECT_EQ(multi_node.local_size, 3);
  EXPECT_TRUE(multi_node.may_span_nodes({0, 1}));
  EXPECT_FALSE(multi_node.may_span_nodes({1}));
  expect_refused(open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"SHARDWISE_NODES", "2"}}),
                 "SHARDWISE_NODES must be 1 or unset in a job on several real nodes; got 2 for 4 ranks, 3 of "
                 "them on this node");
}

TEST_F(Environment, groups_across_simulated_nodes_span_nodes) {
  const LaunchContext context = context_with(open_mpi({{"SHARDWISE_NODES", "2"}}));
  EXPECT_FALSE(context.may_span_nodes({0, 1}));
  EXPECT_TRUE(context.may_span_nodes({1, 2}));
}

TEST_F(Environment, the_world_size_must_be_the_product_of_the_degrees) {
  const LaunchContext context = context_with(torchrun());
  EXPECT_NO_THROW(check_world_size(context, 4));
  try {
    check_world_size(context, 2);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(base::without_code(error.what_without_backtrace()),
              "launch: the number of ranks must equal the product of the degrees of parallelism; got 4 "
              "from torchrun "
              "for degrees of 2; give degrees whose product is 4, or run torchrun with --nproc-per-node 2");
  }
  const auto complaint = [](const Variables& variables) -> std::string {
    try {
      check_world_size(context_with(variables), 3);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "none";
  };
  EXPECT_NE(
      complaint(hydra()).find(
          "got 4 from mpirun for degrees of 3; give degrees whose product is 4, or run mpirun with -n 3"),
      std::string::npos);
  EXPECT_NE(
      complaint(srun()).find(
          "got 4 from srun for degrees of 3; give degrees whose product is 4, or run srun with --ntasks 3"),
      std::string::npos);
  EXPECT_NE(complaint({}).find("got 1 from no launcher for degrees of 3 ["), std::string::npos)
      << complaint({});
}

}  // namespace
}  // namespace shardwise::launch::environment_test
