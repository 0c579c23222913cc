// Encodes the texts of a file, which are separated by zero bytes, on one thread. run.py drives it with the
// protocol of worker.h, without ranks.
//
//   bench_tokenize TOKENIZER TEXTS
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "shardwise/base/files.h"
#include "shardwise/text/tokenizer.h"

namespace {

std::vector<std::string> split_at_zeros(const std::string& all) {
  std::vector<std::string> texts;
  std::istringstream stream(all);
  for (std::string text; std::getline(stream, text, '\0');) texts.push_back(text);
  return texts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto tokenizer = shardwise::text::load_tokenizer(argv[1]);
  const std::vector<std::string> texts = split_at_zeros(shardwise::base::read_text(argv[2]));
  std::vector<int64_t> ids;
  for (int times = 0; std::scanf("%d", &times) == 1;) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) {
      ids.clear();
      for (const auto& text : texts) tokenizer->encode(text, shardwise::text::SpecialTokens::with, ids);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    std::printf("{\"seconds\": %.6f, \"ids\": %zu, \"last\": %lld}\n", elapsed.count(), ids.size(),
                ids.empty() ? -1LL : static_cast<long long>(ids.back()));
    std::fflush(stdout);
  }
}
