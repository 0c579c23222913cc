// Collectives beside products: against a simulation of the parts, and by hand for a block.
#include "shardwise/plan/exposed_communication.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/operation_time.h"
#include "tests/plan/synthetic_machine.h"

namespace shardwise::plan::exposed_communication_test {
namespace {

/// Returns when the last part is multiplied. The own part is there; the others arrive one after the other.
double multiplied_as_they_arrive(int64_t parts, double collective, double compute) {
  double done = compute / static_cast<double>(parts);
  for (int64_t i = 1; i < parts; ++i) {
    const double arrival = collective * static_cast<double>(i) / static_cast<double>(parts - 1);
    done = std::max(done, arrival) + compute / static_cast<double>(parts);
  }
  return done;
}

/// Returns when the last part has been sent and the own one computed, which comes last.
double sent_as_they_are_computed(int64_t parts, double collective, double compute) {
  double sent = 0;
  for (int64_t i = 1; i < parts; ++i) {
    const double computed = compute * static_cast<double>(i) / static_cast<double>(parts);
    sent = std::max(sent, computed) + collective / static_cast<double>(parts - 1);
  }
  return std::max(sent, compute);
}

TEST(ExposedCommunication, IsWhatASimulationOfThePartsLeaves) {
  int compared = 0;
  for (const int64_t parts : {2, 3, 4, 8, 16}) {
    for (const double collective : {0.0, 0.1, 0.5, 0.9, 1.0, 1.3, 4.0}) {
      const double compute = 1, waiting = 1 / static_cast<double>(parts);
      const Overlapped pair{collective, compute, compute, waiting, /*share=*/0};
      EXPECT_NEAR(pair.exposed(), multiplied_as_they_arrive(parts, collective, compute) - compute, 1e-12)
          << parts << " " << collective;
      EXPECT_NEAR(pair.exposed(), sent_as_they_are_computed(parts, collective, compute) - compute, 1e-12)
          << parts << " " << collective;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 35);
}

TEST(ExposedCommunication, TakesItsShareOfTheArithmeticAndNeverMoreThanAlone) {
  // A collective that is hidden takes a tenth of the arithmetic while it runs.
  EXPECT_NEAR((Overlapped{0.5, 1, 1, 0.125, 0.1}.exposed()), 0.05, 1e-12);
  // Parts that take half as long again are not worth a collective of a tenth.
  EXPECT_DOUBLE_EQ((Overlapped{0.1, 1, 1.5, 0.2, 0}.exposed()), 0.1);
  EXPECT_DOUBLE_EQ((Overlapped{0.6, 1, 1.5, 0.2, 0}.exposed()), 0.5);
}

constexpr double kFlopPerSecond = 1e12;
constexpr double kBytes = 1e-6;  // seconds that all bytes of a block take at 1e15 a second, and more

/// Products at kFlopPerSecond, and collectives of so many seconds each.
Machine machine_of(double collective) {
  Machine machine = synthetic_machine(8, kFlopPerSecond, collective);
  machine.shares_memory = false;
  return machine;
}

Workload block_of(Parallelism parallelism) {
  Workload workload;
  workload.config =
      config::preset("llama-3.2-1b");  // 2048 wide, 32 heads and 8 KV heads of 64, 8192 in the MLP
  workload.tp = 2;
  workload.parallelism = parallelism;
  workload.sequence_length = 1024;
  workload.batch_size = 2;
  workload.element_bytes = 2;
  workload.column_input_storage = ColumnInputStorage::shard;
  return workload;
}

double exposed(const Workload& workload, const Machine& machine) {
  return exposed_block_seconds(workload, 0, 0, block_operations(workload, 0, 0, CountedKeys::visible),
                               machine);
}

/// The seconds of a product of all rows on one of two ranks.
double product(double in, double out) {
  return 2 * 2048.0 * in * out / 2 / kFlopPerSecond;
}

double rest(double seconds) {
  return std::max(0.0, seconds);
}

// Two ranks: half of a product is computed beside its collective.
TEST(ExposedCommunication, OfABlockIsThatOfItsLayers) {
  const double qkv = product(2048, 3072), out = product(2048, 2048), up = product(2048, 2 * 8192),
               down = product(8192, 2048);
  for (const double c : {1e-4, 0.4 * qkv, 0.7 * out, 0.8 * down, 1.5 * down, 2 * up}) {
    const double columns = rest(c - qkv / 2) + rest(c - up / 2),
                 rows = rest(c - out / 2) + rest(c - down / 2);
    const double column_gradients = 2 * rest(c - qkv) + 2 * rest(c - up);  // the input again; dX
    const double row_gradients = rest(c - out) + rest(c - down);           // half of both products
    EXPECT_NEAR(exposed(block_of(Parallelism::tp_sp), machine_of(c)),
                columns + rows + column_gradients + row_gradients, kBytes)
        << c;
    // Forward's all_reduces have no product beside them; backward's have dW.
    EXPECT_NEAR(exposed(block_of(Parallelism::tp), machine_of(c)), 2 * c + rest(c - qkv) + rest(c - up),
                kBytes)
        << c;
    Workload repeated = block_of(Parallelism::tp_sp);
    repeated.recompute = Recompute::full;
    EXPECT_NEAR(exposed(repeated, machine_of(c)) - exposed(block_of(Parallelism::tp_sp), machine_of(c)),
                columns + rest(c - out / 2), kBytes)
        << c;
  }
}

// Each all_reduce of a half beside the next branch, which is of the other half; a branch is a norm, its
// products and what is between them.
TEST(ExposedCommunication, OfASplitBatchIsWhatTheOtherHalfDoesNotHide) {
  Workload workload = block_of(Parallelism::tp), half = workload;
  workload.split_batch = true;
  half.batch_size = 1;
  const Machine machine = machine_of(0);
  const OperationTime time(machine, 2);
  double forward[] = {0, 0}, backward[] = {0, 0};
  for (const Operation& one : block_operations(half, 0, 0, CountedKeys::visible)) {
    const std::set<std::string> attention{"rms_norm", "qkv_proj", "rotary", "attention", "o_proj"};
    const int is_mlp = forward[0] > 0 && !attention.contains(one.name) ? 1 : 0;
    forward[is_mlp] += time.forward(one);
    backward[is_mlp] += time.backward(one);
  }
  for (const double c : {1e-5, 0.9 * forward[0], 1.1 * forward[0], 1.1 * backward[0], 2 * backward[1]}) {
    // Attention of one half is before attention of the other, and before the MLP; the MLP is as well.
    const double expected = 2 * rest(c - forward[0]) + 2 * rest(c - forward[1]) + 2 * rest(c - backward[0]) +
                            2 * rest(c - backward[1]);
    EXPECT_NEAR(exposed(workload, machine_of(c)), expected, kBytes) << c;
  }
  workload.overlaps_collectives = false;
  EXPECT_NEAR(exposed(workload, machine_of(1e-3)), 8e-3, kBytes);  // twice as many as those of a whole batch
}

TEST(ExposedCommunication, IsAllOfItWithoutOverlapAndOnSharedMemory) {
  const double c = 1e-3;
  for (const auto& [parallelism, calls] : {std::pair{Parallelism::tp, 4}, {Parallelism::tp_sp, 10}}) {
    Workload workload = block_of(parallelism);
    Machine machine = machine_of(c);
    machine.shares_memory = true;
    EXPECT_NEAR(exposed(workload, machine), calls * c, kBytes);
    workload.overlaps_collectives = false;
    EXPECT_NEAR(exposed(workload, machine_of(c)), calls * c, kBytes);
    workload.tp = 1;
    EXPECT_EQ(exposed(workload, machine_of(c)), 0);
  }
}

TEST(ExposedCommunication, IsNeverMoreThanWithoutOverlap) {
  int hidden = 0;
  for (const std::string& name : machine_names()) {
    for (const char* preset : {"llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3"}) {
      for (const int tp : {2, 4, 8, 16}) {
        Workload workload = block_of(Parallelism::tp_sp);
        workload.config = config::preset_to_plan(preset);
        workload.tp = tp;
        const double with = exposed(workload, built_in_machine(name));
        workload.overlaps_collectives = false;
        const double without = exposed(workload, built_in_machine(name));
        EXPECT_GE(with, 0);
        EXPECT_LE(with, without * (1 + 1e-12)) << name << " " << preset << " " << tp;
        hidden += with < 0.9 * without;
      }
    }
  }
  EXPECT_GT(hidden, 20);
}

}  // namespace
}  // namespace shardwise::plan::exposed_communication_test
