#include "shardwise/text/windows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::windows_test {
namespace {

using test::contains, test::error_text;

/// A corpus of `bytes` bytes in two files, in which byte i is i mod 251.
class Counting {
 public:
  explicit Counting(int64_t bytes) : corpus_({put("a", 0, bytes / 3), put("b", bytes / 3, bytes)}) {}
  const TokenSource& operator*() const { return tokens_; }

 private:
  std::string put(const std::string& name, int64_t begin, int64_t end) const {
    std::string text;
    for (int64_t i = begin; i < end; ++i) text += static_cast<char>(i % 251);
    return directory_.put(name, text);
  }
  test::TemporaryDirectory directory_;
  Corpus corpus_;
  ByteTokens tokens_{corpus_};
};

std::vector<int64_t> counted(int64_t begin, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = begin; i < begin + count; ++i) tokens.push_back(i % 251);
  return tokens;
}

TEST(Windows, TrainingTokensAreAtTheOffset) {
  const Counting corpus(1000);
  const Windows windows(*corpus, {.seq_len = 16, .seed = 3});
  std::vector<int64_t> tokens(17);
  for (int64_t n = 0; n < 50; ++n) {
    windows.read_training(n, tokens);
    EXPECT_EQ(tokens, counted(windows.training_offset(n), 17)) << n;
  }
}

TEST(Windows, OffsetsDependOnSeedAndNumberAlone) {
  const Counting corpus(5000);
  const Windows one(*corpus, {.seq_len = 8, .seed = 1, .windows_per_batch = 1});
  const Windows again(*corpus, {.seq_len = 8, .seed = 1, .windows_per_batch = 64});
  const Windows other(*corpus, {.seq_len = 8, .seed = 2});
  int same = 0;
  for (int64_t n = 99; n >= 0; --n) {
    EXPECT_EQ(one.training_offset(n), again.training_offset(n));
    same += one.training_offset(n) == other.training_offset(n);
  }
  EXPECT_LT(same, 3);
}

TEST(Windows, OffsetsDependOnEveryBitOfSeedAndNumber) {
  const Counting corpus(100000);
  std::set<int64_t> offsets;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t one = int64_t{1} << bit;
    offsets.insert(Windows(*corpus, {.seq_len = 1, .seed = static_cast<uint64_t>(one)}).training_offset(0));
    offsets.insert(Windows(*corpus, {.seq_len = 1, .seed = 0}).training_offset(one));
  }
  EXPECT_GT(offsets.size(), 120u);  // 126 draws of 99,999
}

TEST(Windows, OffsetsAreUniformOverAllThatFit) {
  const int64_t seq_len = 10, bytes = 30,
                places = bytes - seq_len;  // the last window ends at the end of the text
  const Counting corpus(bytes);
  const Windows windows(*corpus, {.seq_len = seq_len, .seed = 42});
  std::vector<int64_t> hits(places);
  const int64_t draws = 20000;
  for (int64_t n = 0; n < draws; ++n) ++hits.at(windows.training_offset(n));
  // Chi-squared with 19 degrees of freedom exceeds 43.8 for one in a thousand seeds.
  const double expected = double(draws) / double(places);
  double chi_squared = 0;
  for (const int64_t count : hits) chi_squared += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_squared, 43.8);
}

TEST(Windows, ShortestTextHasOneWindow) {
  const Counting corpus(9);
  const Windows windows(*corpus, {.seq_len = 8, .seed = 0});
  std::vector<int64_t> tokens(9);
  for (int64_t n = 0; n < 20; ++n) {
    windows.read_training(n, tokens);
    EXPECT_EQ(tokens, counted(0, 9));
  }
}

TEST(Windows, ValidationIsTheEndAndIsNotTrainedOn) {
  const Counting corpus(1000);
  const Windows windows(*corpus, {.seq_len = 16, .seed = 3, .val_fraction = 0.25});
  for (int64_t n = 0; n < 2000; ++n) ASSERT_LE(windows.training_offset(n) + 17, 750);
  EXPECT_EQ(windows.validation_count(), (250 - 1) / 16);
  std::vector<int64_t> tokens(17);
  for (int64_t n = 0; n < windows.validation_count(); ++n) {
    windows.read_validation(n, tokens);
    EXPECT_EQ(tokens, counted(750 + n * 16, 17)) << n;  // a window's last label is the next one's first input
  }
  EXPECT_PRED2(contains, error_text([&] { windows.read_validation(windows.validation_count(), tokens); }),
               "must be below 15");
  EXPECT_PRED2(contains, error_text([&] { windows.read_validation(-1, tokens); }), "got -1");
}

TEST(Windows, NoValidationWithoutAFraction) {
  const Counting corpus(1000);
  EXPECT_EQ(Windows(*corpus, {.seq_len = 16, .seed = 3}).validation_count(), 0);
}

TEST(Windows, RejectsTextShorterThanABatch) {
  const Counting corpus(100);
  const auto error = [&](int64_t seq_len, int64_t windows_per_batch) {
    return error_text(
        [&] { Windows(*corpus, {.seq_len = seq_len, .seed = 0, .windows_per_batch = windows_per_batch}); });
  };
  Windows(*corpus, {.seq_len = 33, .seed = 0, .windows_per_batch = 3});  // 3 x 33 + 1 tokens
  EXPECT_PRED2(contains, error(25, 4), "at least one batch of 4 x 25 + 1 tokens for training; got 100");
  EXPECT_PRED2(contains, error(100, 1), "got 100");
  EXPECT_PRED2(contains, error(std::numeric_limits<int64_t>::max(), 1), "got 100");
  EXPECT_PRED2(contains, error(1, std::numeric_limits<int64_t>::max()), "got 100");
  EXPECT_PRED2(contains, error(0, 1), "seq_len must be at least 1");
  EXPECT_PRED2(contains, error(1, 0), "windows_per_batch must be at least 1");
}

TEST(Windows, RejectsInvalidFractions) {
  const Counting corpus(100);
  const auto error = [&](double val_fraction) {
    return error_text([&] { Windows(*corpus, {.seq_len = 10, .seed = 0, .val_fraction = val_fraction}); });
  };
  for (const double outside : {-0.1, 1.0, 1.5, std::nan("")}) {
    EXPECT_PRED2(contains, error(outside), "val_fraction must be at least 0 and below 1");
  }
  EXPECT_PRED2(contains, error(0.1), "10 + 1 tokens for validation; got 10");
  EXPECT_PRED2(contains, error(0.95), "for training; got 5");
}

TEST(Windows, RejectsBuffersOfAnotherLength) {
  const Counting corpus(100);
  const Windows windows(*corpus, {.seq_len = 10, .seed = 0});
  std::vector<int64_t> tokens(10);
  EXPECT_PRED2(contains, error_text([&] { windows.read_training(0, tokens); }), "got 10");
}

}  // namespace
}  // namespace shardwise::text::windows_test
