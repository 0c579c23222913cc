// Writes after each test which mutants it reached, and how long it took, to the file
// $SHARDWISE_REACHED.tests.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace {

constexpr size_t kMost = 4096;

class Reach : public ::testing::EmptyTestEventListener {
 public:
  explicit Reach(std::string path) : path_(std::move(path)) {}

  void OnTestStart(const ::testing::TestInfo&) override {
    std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary) << std::string(kMost, '\0');
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
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
  std::string path_;
};

[[maybe_unused]] const bool kIsListening = [] {
  const char* const path = std::getenv("SHARDWISE_REACHED");
  if (path != nullptr) ::testing::UnitTest::GetInstance()->listeners().Append(new Reach(path));
  return true;
}();

}  // namespace
