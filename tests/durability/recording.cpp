#include "tests/durability/recording.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "tests/launch/program.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {
namespace {

/// Reads the log from its begin.
class LogReader {
 public:
  LogReader(std::string log, std::string tree) : log_(std::move(log)), tree_(std::move(tree)) {}

  Operations all() {
    Operations operations;
    while (at_ < log_.size()) operations.push_back(next());
    return operations;
  }

 private:
  Operation next() {
    OperationHeader header;
    std::memcpy(&header, take(sizeof(header)).data(), sizeof(header));
    Operation operation{header.kind, relative(take(header.path_bytes))};
    const std::string other = take(header.other_bytes);
    operation.other = header.kind == OperationKind::symlink ? other : relative(other);
    operation.offset = header.offset;
    operation.data = take(header.data_bytes);
    return operation;
  }
  std::string take(size_t bytes) {
    EXPECT_LE(at_ + bytes, log_.size()) << "the log is truncated";
    at_ += bytes;
    return log_.substr(at_ - bytes, bytes);
  }
  std::string relative(const std::string& path) const {
    return path.size() <= tree_.size() ? "" : path.substr(tree_.size() + 1);
  }

  std::string log_, tree_;
  size_t at_ = 0;
};

}  // namespace

Operations record(const std::vector<std::string>& argv, const std::string& tree) {
  const test::TemporaryDirectory scratch;
  const std::string log = scratch.put("log", ""), real = std::filesystem::canonical(tree);
  Program program(argv, {.environment = {"LD_PRELOAD=" DURABILITY_RECORDER, "RECORDER_TREE=" + real,
                                         "RECORDER_LOG=" + log, "SHARDWISE_THREADS=1"}});
  EXPECT_EQ(exit_code(program.wait(kStartLimit)), 0) << program.errors();
  return LogReader(test::contents(log), real).all();
}

std::string text_of(const Operation& operation) {
  static constexpr const char* kNames[] = {"create",   "write",   "resize", "sync",  "rename",
                                           "exchange", "symlink", "unlink", "mkdir", "rmdir"};
  return fmt::format("{} '{}' {} (offset {}, {} bytes)", kNames[static_cast<int>(operation.kind)],
                     operation.path, operation.other, operation.offset, operation.data.size());
}

}  // namespace shardwise::testing
