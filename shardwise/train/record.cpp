#include "shardwise/train/record.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shardwise::train {

Usage StepRecord::largest_usage() const {
  Usage largest;
  for (const Usage& u : usage) {
    largest = {std::max(largest.step_ns, u.step_ns),
               std::max(largest.comm_ns, u.comm_ns),
               std::max(largest.wait_ns, u.wait_ns),
               std::max(largest.comm_bytes, u.comm_bytes),
               std::max(largest.copied_bytes, u.copied_bytes),
               std::max(largest.peak_memory_bytes, u.peak_memory_bytes)};
  }
  return largest;
}

std::string to_json(const StepRecord& record) {
  const Usage usage = record.largest_usage();
  nlohmann::ordered_json line{{"step", record.step},
                              {"tokens", record.tokens},
                              {"loss", record.loss},
                              {"grad_norm", record.grad_norm},
                              {"lr", record.lr},
                              {"tokens_per_s", record.tokens_per_s},
                              {"step_ms", record.step_ms},
                              {"comm_ms", static_cast<double>(usage.comm_ns) / 1e6},
                              {"wait_ms", static_cast<double>(usage.wait_ns) / 1e6},
                              {"comm_bytes", usage.comm_bytes},
                              {"copied_bytes", usage.copied_bytes},
                              {"peak_memory_bytes", usage.peak_memory_bytes}};
  if (record.val_loss) line["val_loss"] = *record.val_loss;
  return line.dump();
}

std::vector<Usage> gather_usage(const Usage& own, const comm::Group& group) {
  const at::Tensor row = at::empty({1, 6}, at::kLong);
  int64_t* figures = row.mutable_data_ptr<int64_t>();
  figures[0] = own.step_ns, figures[1] = own.comm_ns, figures[2] = own.wait_ns;
  figures[3] = own.comm_bytes, figures[4] = own.copied_bytes, figures[5] = own.peak_memory_bytes;
  const at::Tensor rows = group.all_gather(row, base::Split::even("ranks", group.size(), group.size()));
  std::vector<Usage> usage;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t* of_rank = rows.const_data_ptr<int64_t>() + int64_t{6} * rank;
    usage.push_back({of_rank[0], of_rank[1], of_rank[2], of_rank[3], of_rank[4], of_rank[5]});
  }
  return usage;
}

}  // namespace shardwise::train
