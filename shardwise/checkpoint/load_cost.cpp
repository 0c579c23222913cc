#include "shardwise/checkpoint/load_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/log.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::checkpoint {
namespace {

/// What a rank tells the others.
struct OfRank {
  Loaded loaded;
  int64_t weight_bytes, peak_bytes;
};

/// More would not fit a line.
constexpr size_t kMostListed = 8;

int64_t bytes_of(const model::DecoderWeights& weights) {
  int64_t bytes = 0;
  for (const nn::UsedParameter& role : weights.roles()) bytes += role.parameter->bytes();
  return bytes;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e6);
}

/// "12.30, 12.29 MB".
std::string listed(const std::vector<int64_t>& bytes) {
  if (bytes.size() > kMostListed) {
    const auto [least, most] = std::ranges::minmax(bytes);
    return fmt::format("{} to {} MB on each of {} ranks", megabytes(least), megabytes(most), bytes.size());
  }
  std::string text;
  for (const int64_t of_rank : bytes) text += (text.empty() ? "" : ", ") + megabytes(of_rank);
  return text + " MB";
}

/// "read 12.30, 12.29 MB in 0.52 s"; of many ranks the least and the most.
std::string to_text(const LoadCost& cost) {
  return fmt::format("read {} in {:.2f} s", listed(cost.bytes_read), cost.seconds);
}

}  // namespace

LoadCost cost_of(const Loaded& own, const model::DecoderWeights& weights) {
  const OfRank figures{own, bytes_of(weights), base::peak_bytes()};
  LoadCost cost{};
  for (const OfRank& rank : comm::gather_values(figures, weights.group())) {
    cost.seconds = std::max(cost.seconds, rank.loaded.seconds);
    cost.bytes_read.push_back(rank.loaded.bytes_read);
    cost.weight_bytes.push_back(rank.weight_bytes);
    cost.peak_bytes.push_back(rank.peak_bytes);
  }
  return cost;
}

void add_(LoadCost& cost, const Loaded& own, const comm::Group& group) {
  double slowest = 0;
  const std::vector<Loaded> all = comm::gather_values(own, group);
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
