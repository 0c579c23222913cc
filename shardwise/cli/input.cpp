#include "shardwise/cli/input.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <vector>

namespace shardwise::cli {
namespace {

constexpr std::streamsize kBlockBytes = 1 << 16;

/// Returns std::cin, detached from stdio: synchronized with it, the stream reports a read error as the end.
std::istream& input() {
  std::ios::sync_with_stdio(false);
  return std::cin;
}

void check(const std::istream& in) {
  TORCH_CHECK(!in.bad(), "standard input: must be readable to its end; got: ", std::strerror(errno),
              " [SW0105]");
}

}  // namespace

std::optional<std::string> read_line() {
  std::istream& in = input();
  std::string line;
  const bool is_there = bool(std::getline(in, line));
  check(in);
  return is_there ? std::optional(std::move(line)) : std::nullopt;
}

std::string read_input(int64_t max_bytes) {
  std::istream& in = input();
  std::string text;
  std::vector<char> block(kBlockBytes);
  while (in) {
    in.read(block.data(), kBlockBytes);
    text.append(block.data(), in.gcount());
    TORCH_CHECK_VALUE(std::ssize(text) <= max_bytes, "standard input: must have at most ", max_bytes,
                      " bytes; got more [SW0623]");
  }
  check(in);
  return text;
}

}  // namespace shardwise::cli
