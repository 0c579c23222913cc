#include "shardwise/cli/profile_hosts.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "shardwise/base/error.h"
#include "shardwise/plan/collective_time.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMostHosts = 64;

/// A unit of a quantity, spelled as by tc.
struct QuantityUnit {
  const char* name;
  double value;
};
constexpr QuantityUnit kTimeUnits[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
constexpr QuantityUnit kRateUnits[] = {{"mbit", 1e6}, {"gbit", 1e9}};

/// A flag whose value is a number with a unit.
struct Quantity {
  const char *flag, *least, *most, *example;
  std::span<const QuantityUnit> units;
};
constexpr Quantity kDelay{"--delay", "1us", "10s", "50us", kTimeUnits};
constexpr Quantity kRate{"--rate", "1mbit", "1000gbit", "10gbit", kRateUnits};

/// Returns the quantity in the unit whose value is 1, NaN if the text is none.
double parsed(const Quantity& quantity, const std::string& text) {
  char* unit = nullptr;
  const double number = std::strtod(text.c_str(), &unit);
  for (const QuantityUnit& one : quantity.units)
    if (unit != text.c_str() && std::string_view(unit) == one.name) return number * one.value;
  return std::nan("");
}

std::optional<double> value_of(const std::string& command, const Quantity& quantity,
                               const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const double value = parsed(quantity, *text);
  const bool is_in_range =
      value >= parsed(quantity, quantity.least) && value <= parsed(quantity, quantity.most);
  TORCH_CHECK_VALUE(is_in_range, command, ": ", quantity.flag, " must be from ", quantity.least, " to ",
                    quantity.most, ", such as ", quantity.example, "; got ", base::shortened(*text),
                    " [SW0827]");
  return value;
}

/// The hierarchical all_reduce and reduce_scatter sum 16-bit elements in fp32 between hosts: half as many
/// bytes again over both halves (docs/adr/0017). Its hosts exchange the bytes of a ring of hosts, not of
/// ranks.
double bytes_of_ring_per_sent(const HostNetwork& network, int64_t ranks, int64_t element_bytes) {
  const auto r = static_cast<double>(ranks), h = static_cast<double>(network.hosts_of(ranks));
  const double sums = network.ranks_per_host > 1 && element_bytes < 4 ? 1.5 : 1;
  return (r - 1) / r * h / (h - 1) / sums;
}

/// A machine whose nodes are the hosts; its other figures are not read. Every rank sends directly to its
/// peers: after an announcement each half of a collective takes one delay, however many ranks there are.
plan::Machine network_machine(const HostNetwork& network, int64_t ranks, int64_t element_bytes) {
  constexpr double kUnlimited = 1e15;
  const std::string source = to_text(network);
  const double delay = network.delay_seconds.value_or(0);
  const double of_rank = *network.bits_per_second / 8 / static_cast<double>(network.ranks_per_host);
  plan::Machine machine;
  machine.name = source;
  machine.devices_per_node = network.ranks_per_host;
  machine.within_node.bytes_per_second = {kUnlimited, source};
  machine.within_node.efficiency = {1, source};
  machine.across_nodes = plan::Link{{of_rank, source},
                                    {bytes_of_ring_per_sent(network, ranks, element_bytes), source},
                                    {delay, source},
                                    {delay / static_cast<double>(ranks - 1), source},
                                    /*processor_share=*/{0, source}};
  return machine;
}

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:g} us", seconds * 1e6) : fmt::format("{:g} ms", seconds * 1e3);
}

}  // namespace

void add_host_flags(Flags& flags, HostOptions& o) {
  flags.value("--hosts N", o.hosts,
              "spread the largest number of ranks evenly over N hosts that this machine emulates by network "
              "namespaces, with TCP between them [this machine alone]; needs root, iproute2 and Open MPI");
  flags.value("--delay TIME", o.delay,
              "with --hosts: one-way delay between hosts, such as 50us, by tc netem [none]");
  flags.value("--rate RATE", o.rate,
              "with --hosts: what a host can send, such as 10gbit or 500mbit, by tc [unlimited]");
}

void check_needed(const std::string& command, const std::string& flag, bool has_needed,
                  const std::string& needed, const std::string& got) {
  TORCH_CHECK_VALUE(has_needed, command, ": ", flag, " needs ", needed, "; got ", got, " [SW0826]");
}

std::optional<HostNetwork> network_of(const std::string& command, const HostOptions& o,
                                      const std::vector<int64_t>& ranks) {
  for (const auto& [flag, value] : {std::pair{"--delay", &o.delay}, {"--rate", &o.rate}})
    check_needed(command, flag, !*value || o.hosts, "--hosts", value->value_or("") + " alone");
  if (!o.hosts) return std::nullopt;
  check_range(command, "--hosts", *o.hosts, 2, kMostHosts);
  check_needed(command, "--hosts", ranks.back() % *o.hosts == 0, "a largest number of ranks that it divides",
               fmt::format("{} hosts for {} ranks", *o.hosts, ranks.back()));
  return HostNetwork{*o.hosts, ranks.back() / *o.hosts, value_of(command, kDelay, o.delay),
                     value_of(command, kRate, o.rate)};
}

std::string to_text(const HostNetwork& network) {
  std::string text = fmt::format("{} emulated hosts of {} rank{}", network.hosts, network.ranks_per_host,
                                 network.ranks_per_host == 1 ? "" : "s");
  if (network.delay_seconds) text += ", " + time_text(*network.delay_seconds);
  if (network.bits_per_second) text += fmt::format(", {:g} Gbit/s", *network.bits_per_second / 1e9);
  return text;
}

std::string hosts_text(const HostNetwork& network, int64_t ranks) {
  const int64_t hosts = network.hosts_of(ranks);
  return hosts == 1 ? "1" : fmt::format("{}, crosses", hosts);
}

nlohmann::ordered_json to_json(const HostNetwork& network) {
  nlohmann::ordered_json json{{"hosts", network.hosts},
                              {"ranks_per_host", network.ranks_per_host},
                              {"delay_seconds", nullptr},
                              {"bits_per_second", nullptr}};
  if (network.delay_seconds) json["delay_seconds"] = *network.delay_seconds;
  if (network.bits_per_second) json["bits_per_second"] = *network.bits_per_second;
  return json;
}

std::optional<double> network_seconds(const HostNetwork& network, int64_t ranks,
                                      const plan::Collectives& collectives, int64_t element_bytes) {
  const bool fills_hosts = ranks > network.ranks_per_host && ranks % network.ranks_per_host == 0;
  if (!network.bits_per_second || !fills_hosts) return std::nullopt;
  return plan::CollectiveTime(network_machine(network, ranks, element_bytes), {.ranks = ranks})
      .of(collectives);
}

}  // namespace shardwise::cli
