#include "shardwise/checkpoint/load_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/log.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/device.h"

namespace shardwise::checkpoint {
namespace {

/// The values that the ranks exchange.
struct RankCost {
  LoadStats stats;
  int64_t weight_bytes, peak_bytes;
};

/// More ranks would not fit on a line.
constexpr size_t kMaxListedRanks = 8;

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e6);
}

/// Returns "12.30, 12.29 MB", or the range over many ranks.
std::string listed(const std::vector<int64_t>& bytes) {
  if (bytes.size() > kMaxListedRanks) {
    const auto [least, most] = std::ranges::minmax(bytes);
    return fmt::format("{} to {} MB on each of {} ranks", megabytes(least), megabytes(most), bytes.size());
  }
  std::string text;
  for (const int64_t rank_bytes : bytes) text += (text.empty() ? "" : ", ") + megabytes(rank_bytes);
  return text + " MB";
}

/// Returns "read 12.30, 12.29 MB in 0.52 s", or "mapped 12.30, 12.29 MB and read …".
std::string to_text(const LoadCost& cost) {
  const bool maps = std::ranges::any_of(cost.mapped_bytes, [](int64_t bytes) { return bytes > 0; });
  const std::string mapped = maps ? fmt::format("mapped {} and ", listed(cost.mapped_bytes)) : "";
  return fmt::format("{}read {} in {:.2f} s", mapped, listed(cost.bytes_read), cost.seconds);
}

}  // namespace

int64_t weight_bytes(const model::DecoderWeights& weights) {
  int64_t bytes = 0;
  for (const nn::UsedParameter& used : weights.held_parameters()) bytes += used.parameter->bytes();
  return bytes;
}

int64_t mapped_bytes(const model::DecoderWeights& weights) {
  int64_t bytes = 0;
  for (const nn::UsedParameter& used : weights.held_parameters())
    if (used.parameter->panels) bytes += used.parameter->panels->data_bytes();
  return bytes;
}

LoadCost cost_of(const LoadStats& local, const model::DecoderWeights& weights, const comm::Group& group) {
  const RankCost local_cost{local, weight_bytes(weights), kernels::peak_bytes(weights.group().device())};
  LoadCost cost{};
  for (const RankCost& rank : comm::gather_values(local_cost, group)) {
    cost.seconds = std::max(cost.seconds, rank.stats.seconds);
    cost.bytes_read.push_back(rank.stats.bytes_read);
    cost.weight_bytes.push_back(rank.weight_bytes);
    cost.mapped_bytes.push_back(rank.stats.mapped_bytes);
    cost.peak_bytes.push_back(rank.peak_bytes);
  }
  return cost;
}

void add_(LoadCost& cost, const LoadStats& local, const comm::Group& group) {
  double slowest = 0;
  const std::vector<LoadStats> all = comm::gather_values(local, group);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    cost.bytes_read[rank] += all[rank].bytes_read;
    slowest = std::max(slowest, all[rank].seconds);
  }
  cost.seconds += slowest;
}

void log_load(const std::string& command, const std::filesystem::path& directory, const LoadCost& cost,
              const comm::Group& group) {
  const bool has_read = std::ranges::any_of(cost.bytes_read, [](int64_t bytes) { return bytes > 0; });
  if (group.rank() > 0 || !has_read) return;
  base::log_info(fmt::format("{}: {} from {}", command, to_text(cost), directory.string()));
}

}  // namespace shardwise::checkpoint
