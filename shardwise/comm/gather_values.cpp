#include "shardwise/comm/gather_values.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace shardwise::comm {

void detail::gather_bytes(const void* local, size_t bytes, void* all, const Group& group) {
  at::Tensor row = at::empty({1, int64_t(bytes)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), local, bytes);
  const auto split = base::Split::even("ranks", group.size(), group.size());
  const at::Tensor rows = group.size() == 1 ? row : group.all_gather(row.to(group.device()), split).cpu();
  std::memcpy(all, rows.const_data_ptr(), rows.nbytes());
}

std::vector<std::string> gather_texts(const std::string& local, const Group& group) {
  if (group.size() == 1) return {local};
  const std::vector<int64_t> lengths = gather_values(std::ssize(local), group);
  const int64_t longest = *std::ranges::max_element(lengths);
  if (longest == 0) return std::vector<std::string>(lengths.size());
  std::vector<char> padded(local.begin(), local.end());
  padded.resize(longest);
  const std::vector<char> all = gather_values(padded, group);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < std::ssize(lengths); ++rank)
    texts.emplace_back(all.begin() + rank * longest, all.begin() + rank * longest + lengths[rank]);
  return texts;
}

std::string first_text(const std::string& local, const Group& group) {
  if (group.size() == 1) return local;
  const std::vector<std::string> texts = gather_texts(local, group);
  const auto found = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace shardwise::comm
