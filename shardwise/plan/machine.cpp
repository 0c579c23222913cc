#include "shardwise/plan/machine.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "shardwise/base/error.h"

namespace shardwise::plan {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;
constexpr double kGiB = 1024.0 * 1024 * 1024;

const char* const kMeasuredOnA100 =
    "least squares of relative errors, NCCL's all_reduce on 2, 4 and 8 A100, 1 to 1024 MiB (vTrain, "
    "trace/a100)";
const char* const kLikeA100 = "as on A100, for want of a table";
const char* const kInCalculon = "Calculon, systems/a100_80g.json";

Link nvlink(double gigabytes, const char* source, const char* measured) {
  return {{gigabytes * kGiga, source}, {0.69, measured}, {35.3 * kMicro, measured}, {2.4 * kMicro, measured}};
}

Link network(double gigabytes, const char* source) {
  return {{gigabytes * kGiga, source},
          {0.9, kInCalculon},
          {20 * kMicro, kInCalculon},
          {2.7 * kMicro, "DTensor's cost model, between hosts"}};
}

/// Products of bf16 on H100, up to 4096 × 4096 × 4096 those of XLA's table (matmul_interpolator_data.h,
/// sm_90).
const std::vector<Efficiency> kOnH100 = {{6.7e7, 0.012}, {1.1e9, 0.12},   {4.3e9, 0.35},
                                         {8.6e9, 0.50},  {1.7e10, 0.62},  {3.4e10, 0.71},
                                         {6.9e10, 0.75}, {1.37e11, 0.79}, {1e12, 0.80}};

/// The fractions of a device with `rate` times the rate of H100 whose largest products reach `largest`.
std::vector<Efficiency> like_h100(double rate, double largest) {
  std::vector<Efficiency> list = kOnH100;
  for (Efficiency& one : list) {
    one.flop *= rate;
    one.fraction *= largest / kOnH100.back().fraction;
  }
  return list;
}

/// What all built-in GPUs share.
Machine gpu(const char* name) {
  Machine m;
  m.name = name;
  m.devices_per_node = 8;
  m.reserved_bytes = {4 * kGiB, "context, NCCL's buffers and fragmentation; a rule of thumb"};
  m.memory_efficiency = {0.9, kInCalculon};
  m.seconds_per_operation = {5 * kMicro, "a kernel launch; a rule of thumb"};
  return m;
}

Machine a100() {
  Machine m = gpu("a100");
  m.memory_bytes = {80 * kGiga, "NVIDIA A100 80GB data sheet"};
  m.flop_per_second_16_bit = {312 * kTera, "NVIDIA A100 80GB data sheet"};
  m.flop_per_second_32_bit = {156 * kTera, "NVIDIA A100 80GB data sheet, TF32"};
  m.memory_bytes_per_second = {2039 * kGiga, "NVIDIA A100 80GB data sheet"};
  m.efficiency = like_h100(312 / 989.4, 0.86);
  m.efficiency_source = "as H100 by size; the largest 267.9 TFLOP/s (Bekman, ML Engineering, MAMF)";
  m.within_node = nvlink(300, "NVLink 3: 600 GB/s both ways", kMeasuredOnA100);
  m.across_nodes = network(25, "InfiniBand HDR, one 200 Gb/s port for each device (DGX A100)");
  return m;
}

Machine h100() {
  Machine m = gpu("h100");
  m.memory_bytes = {80 * kGiga, "NVIDIA H100 SXM data sheet"};
  m.flop_per_second_16_bit = {989.4 * kTera, "NVIDIA H100 SXM data sheet"};
  m.flop_per_second_32_bit = {494.7 * kTera, "NVIDIA H100 SXM data sheet, TF32"};
  m.memory_bytes_per_second = {3350 * kGiga, "NVIDIA H100 SXM data sheet"};
  m.efficiency = kOnH100;
  m.efficiency_source = "XLA's table for sm_90; the largest 794.5 TFLOP/s (Bekman, ML Engineering, MAMF)";
  m.within_node = nvlink(450, "NVLink 4: 900 GB/s both ways", kLikeA100);
  m.across_nodes = network(50, "InfiniBand NDR, one 400 Gb/s port for each device (DGX H100)");
  return m;
}

Machine h200() {
  Machine m = h100();
  m.name = "h200";
  m.memory_bytes = {141 * kGiga, "NVIDIA H200 data sheet"};
  m.memory_bytes_per_second = {4800 * kGiga, "NVIDIA H200 data sheet"};
  return m;
}

Machine b200() {
  Machine m = gpu("b200");
  m.memory_bytes = {180 * kGiga, "NVIDIA HGX B200 data sheet: 1.4 TB of 8"};
  m.flop_per_second_16_bit = {2250 * kTera, "NVIDIA HGX B200 data sheet: 36 PFLOP/s of 8 with sparsity"};
  m.flop_per_second_32_bit = {1125 * kTera, "NVIDIA HGX B200 data sheet, TF32"};
  m.memory_bytes_per_second = {7700 * kGiga, "NVIDIA HGX B200 data sheet: 62 TB/s of 8"};
  m.efficiency = like_h100(2250 / 989.4, 0.776);
  m.efficiency_source = "as H100 by size; the largest 1745 TFLOP/s (Bekman, ML Engineering, MAMF)";
  m.within_node = nvlink(900, "NVLink 5: 1.8 TB/s both ways", kLikeA100);
  m.across_nodes = network(50, "InfiniBand NDR, one 400 Gb/s port for each device (DGX B200)");
  return m;
}

Machine p4d() {
  Machine m = a100();
  m.name = "p4d";
  m.memory_bytes = {40 * kGiga, "Amazon EC2 p4d.24xlarge: A100 40GB"};
  m.memory_bytes_per_second = {1555 * kGiga, "NVIDIA A100 40GB data sheet"};
  m.across_nodes = network(6.25, "EFA, 400 Gb/s for a node of 8 (Amazon EC2 p4d)");
  return m;
}

Machine p5() {
  Machine m = h100();
  m.name = "p5";
  m.across_nodes = network(50, "EFA, 3,200 Gb/s for a node of 8 (Amazon EC2 p5)");
  return m;
}

std::vector<Machine> machines() {
  return {a100(), h100(), h200(), b200(), p4d(), p5()};
}

}  // namespace

double Machine::efficiency_of(double flop) const {
  if (flop <= efficiency.front().flop) return efficiency.front().fraction * flop / efficiency.front().flop;
  if (flop >= efficiency.back().flop) return efficiency.back().fraction;
  const auto above = std::ranges::upper_bound(efficiency, flop, {}, &Efficiency::flop);
  const Efficiency &low = above[-1], &high = *above;
  const double part = std::log(flop / low.flop) / std::log(high.flop / low.flop);
  return low.fraction + part * (high.fraction - low.fraction);
}

double Machine::flop_per_second(int64_t element_bytes) const {
  return element_bytes <= 2 ? flop_per_second_16_bit.value : flop_per_second_32_bit.value;
}

double Machine::reached_bytes_per_second() const {
  return memory_bytes_per_second.value * memory_efficiency.value;
}

int64_t Machine::usable_bytes() const {
  return static_cast<int64_t>(memory_bytes.value - reserved_bytes.value);
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const Machine& machine : machines()) names.push_back(machine.name);
  return names;
}

Machine built_in_machine(const std::string& name) {
  for (const Machine& machine : machines()) {
    if (machine.name == name) return machine;
  }
  C10_THROW_ERROR(ValueError, fmt::format("plan: machine must be one of {}; got {} [SW0754]",
                                          fmt::join(machine_names(), ", "), base::shortened(name)));
}

}  // namespace shardwise::plan
