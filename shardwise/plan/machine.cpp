#include "shardwise/plan/machine.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "shardwise/base/error.h"

namespace shardwise::plan {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;
constexpr double kGiB = 1024.0 * 1024 * 1024;

const char* const kMeasuredOnA100 =
    "least squares of relative errors, NCCL's all_reduce on 2, 4 and 8 A100, 1 to 1024 MiB (vTrain, "
    "trace/a100)";
const char* const kLikeA100 = "as on A100, for want of a table";
const char* const kH100Sheet = "NVIDIA H100 SXM data sheet";
const char* const kInCalculon = "Calculon, systems/a100_80g.json";

Link nvlink(double gigabytes, const char* source, const char* measured) {
  return {{gigabytes * kGiga, source},
          {0.69, measured},
          {35.3 * kMicro, measured},
          {2.4 * kMicro, measured},
          {0.15, kInCalculon}};
}

Link network(double gigabytes, const char* source) {
  return {{gigabytes * kGiga, source},
          {0.9, kInCalculon},
          {20 * kMicro, kInCalculon},
          {2.7 * kMicro, "DTensor's cost model, between hosts"},
          {0.02, kInCalculon}};
}

/// The part of the peak rate that products of bf16 reach on H100, by FLOP: up to 4096 × 4096 × 4096 those of
/// XLA's table (matmul_interpolator_data.h, sm_90).
struct Efficiency {
  double flop, fraction;
};
constexpr Efficiency kOnH100[] = {{6.7e7, 0.012}, {1.1e9, 0.12},   {4.3e9, 0.35},
                                  {8.6e9, 0.50},  {1.7e10, 0.62},  {3.4e10, 0.71},
                                  {6.9e10, 0.75}, {1.37e11, 0.79}, {1e12, 0.80}};
constexpr double kLargestOnH100 = 0.80, kPeakOfH100 = 989.4 * kTera;
constexpr double kMemoryEfficiency = 0.9;  // of large operations; Calculon, systems/a100_80g.json

/// A device whose largest products reach `largest` of its peak, and smaller ones the part of that which H100
/// reaches with products that take as long.
OperationRates rates_of(const Figure& peak, double largest, const char* source, double bytes_per_second) {
  std::vector<Rate::Point> points;
  for (const auto& [flop, fraction] : kOnH100)
    points.push_back({flop * peak.value / kPeakOfH100, fraction * largest / kLargestOnH100 * peak.value});
  const Rate product(points, source), elementwise({{1, bytes_per_second}}, kInCalculon);
  return {peak, product, product, product, product, product, elementwise};
}

/// Products of bf16, of fp32 as TF32, and memory.
struct DataSheet {
  const char* source;
  double teraflops_16_bit, teraflops_32_bit;
  double memory_gigabytes, memory_gigabytes_per_second;
  double largest;  // part of the peak that the largest products reach
  const char* efficiency_source;
};

/// What all built-in GPUs share.
Machine gpu(const char* name, const DataSheet& sheet) {
  const double reached = kMemoryEfficiency * sheet.memory_gigabytes_per_second * kGiga;
  const auto rates = [&](double teraflops) {
    return rates_of({teraflops * kTera, sheet.source}, sheet.largest, sheet.efficiency_source, reached);
  };
  Machine m;
  m.name = name;
  m.devices_per_node = 8;
  m.memory_bytes = {sheet.memory_gigabytes * kGiga, sheet.source};
  m.reserved_bytes = {4 * kGiB, "context, NCCL's buffers and fragmentation; a rule of thumb"};
  m.memory_bytes_per_second = {reached, fmt::format("{}; 0.9 of it as in {}", sheet.source, kInCalculon)};
  m.update_bytes_per_second = m.memory_bytes_per_second;
  m.seconds_per_operation = {5 * kMicro, "a kernel launch; a rule of thumb"};
  m.rates_16_bit = rates(sheet.teraflops_16_bit);
  m.rates_32_bit = rates(sheet.teraflops_32_bit);
  return m;
}

Machine a100(const char* name, const char* source, double gigabytes, double gigabytes_per_second) {
  Machine m = gpu(name, {source, 312, 156, gigabytes, gigabytes_per_second, 0.86,
                         "as H100 by size; the largest 267.9 TFLOP/s (Bekman, ML Engineering, MAMF)"});
  m.within_node = nvlink(300, "NVLink 3: 600 GB/s both ways", kMeasuredOnA100);
  m.across_nodes = network(25, "InfiniBand HDR, one 200 Gb/s port for each device (DGX A100)");
  return m;
}

Machine h100(const char* name, const char* source, double gigabytes, double gigabytes_per_second) {
  Machine m = gpu(name, {source, 989.4, 494.7, gigabytes, gigabytes_per_second, 0.80,
                         "XLA's table for sm_90; the largest 794.5 TFLOP/s (Bekman, ML Engineering, MAMF)"});
  m.within_node = nvlink(450, "NVLink 4: 900 GB/s both ways", kLikeA100);
  m.across_nodes = network(50, "InfiniBand NDR, one 400 Gb/s port for each device (DGX H100)");
  return m;
}

Machine b200() {
  Machine m =
      gpu("b200", {"NVIDIA HGX B200 data sheet: 1.4 TB, 36 PFLOP/s with sparsity and 62 TB/s of 8 devices",
                   2250, 1125, 180, 7700, 0.776,
                   "as H100 by size; the largest 1745 TFLOP/s (Bekman, ML Engineering, MAMF)"});
  m.within_node = nvlink(900, "NVLink 5: 1.8 TB/s both ways", kLikeA100);
  m.across_nodes = network(50, "InfiniBand NDR, one 400 Gb/s port for each device (DGX B200)");
  return m;
}

Machine p4d() {
  Machine m = a100("p4d", "NVIDIA A100 40GB data sheet", 40, 1555);
  m.across_nodes = network(6.25, "EFA, 400 Gb/s for a node of 8 (Amazon EC2 p4d)");
  return m;
}

Machine p5() {
  Machine m = h100("p5", kH100Sheet, 80, 3350);
  m.across_nodes = network(50, "EFA, 3,200 Gb/s for a node of 8 (Amazon EC2 p5)");
  return m;
}

std::vector<Machine> machines() {
  return {a100("a100", "NVIDIA A100 80GB data sheet", 80, 2039),
          h100("h100", kH100Sheet, 80, 3350),
          h100("h200", "NVIDIA H200 data sheet", 141, 4800),
          b200(),
          p4d(),
          p5()};
}

constexpr std::pair<const char*, Algorithm> kAlgorithms[] = {
    {"ring", Algorithm::ring}, {"two-shot", Algorithm::two_shot}, {"tree", Algorithm::tree}};

}  // namespace

Algorithm algorithm_of(const std::string& name) {
  for (const auto& [known, algorithm] : kAlgorithms)
    if (known == name) return algorithm;
  TORCH_CHECK_VALUE(false, "plan: the algorithm of collectives must be ring, two-shot or tree; got ",
                    base::shortened(name), " [SW0779]");
}

std::string name_of(Algorithm algorithm) {
  for (const auto& [name, known] : kAlgorithms)
    if (known == algorithm) return name;
  TORCH_INTERNAL_ASSERT(false);
}

const OperationRates& Machine::rates(int64_t element_bytes) const {
  return element_bytes <= 2 ? rates_16_bit : rates_32_bit;
}

int64_t Machine::usable_bytes(std::optional<int64_t> cap) const {
  const int64_t usable = cap.value_or(static_cast<int64_t>(memory_bytes.value - reserved_bytes.value));
  TORCH_CHECK_VALUE(usable > 0, "plan: the memory cap must be positive; got ", usable, " bytes [SW0757]");
  return usable;
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
  TORCH_CHECK_VALUE(false, "plan: machine must be one of ", fmt::to_string(fmt::join(machine_names(), ", ")),
                    "; got ", base::shortened(name), " [SW0768]");
}

}  // namespace shardwise::plan
