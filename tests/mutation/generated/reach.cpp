// Writes after each test which mutants it reached, and how long it took, to the file
// $SHARDWISE_REACHED.tests.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace {

constexpr size_t kMost = 4096;

class Reach : public ::testing::EmptyTestEventListener {
 public:
  explicit Reach(std::string path) : path_(std::move(path)) {}

  void OnTestStart(const ::testing::TestInfo& test) override {
    if (is_worker(test)) return;
    std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary) << std::string(kMost, '\0');
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (is_worker(test)) return;
    std::ifstream file(path_, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::ofstream out(path_ + ".tests", std::ios::app);
    out << test.test_suite_name() << '.' << test.name() << ' ' << test.result()->elapsed_time() << ' '
        << test.result()->Passed();
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != 0) out << ' ' << i;
    }
    out << '\n';
  }

 private:
  /// A test starts a process of its own as a disabled test, whose places are that test's.
  static bool is_worker(const ::testing::TestInfo& test) {
    return std::string_view(test.name()).starts_with("DISABLED_");
  }

  std::string path_;
};

[[maybe_unused]] const bool kIsListening = [] {
  const char* const path = std::getenv("SHARDWISE_REACHED");
  if (path != nullptr) ::testing::UnitTest::GetInstance()->listeners().Append(new Reach(path));
  return true;
}();

}  // namespace
