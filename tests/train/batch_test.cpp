#include "shardwise/train/batch.h"

#include "tests/train/runs.h"

namespace shardwise::train::batch_test {
namespace {

using testing::Scratch;

/// Returns a text whose byte at offset i is i mod 251, so a token identifies its position.
std::string ramp(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(i % 251);
  return text;
}

TEST(Batch, ColumnsAreWindowsAndLabelsAreShiftedByOne) {
  const Scratch scratch;
  const text::Corpus corpus({scratch.put("ramp", ramp(1000))});
  const text::ByteTokens tokens(corpus);
  const text::Windows windows(tokens, {.seq_len = 9, .seed = 5});
  const Batch batch = training_batch(windows, /*first=*/30, /*sequences=*/3);
  ASSERT_EQ(batch.ids.sizes(), (std::vector<int64_t>{9, 3}));
  ASSERT_EQ(batch.labels.sizes(), (std::vector<int64_t>{9, 3}));
  EXPECT_EQ(batch.tokens(), 27);
  for (int64_t column = 0; column < 3; ++column) {
    const int64_t offset = windows.training_offset(30 + column);
    for (int64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(batch.ids[i][column].item<int64_t>(), (offset + i) % 251);
      EXPECT_EQ(batch.labels[i][column].item<int64_t>(), (offset + i + 1) % 251);
    }
  }
}

TEST(Batch, ValidationWindowsAreAtTheEnd) {
  const Scratch scratch;
  const text::Corpus corpus({scratch.put("ramp", ramp(200))});
  const text::ByteTokens tokens(corpus);
  const text::Windows windows(tokens, {.seq_len = 9, .seed = 5, .val_fraction = 0.5});
  const Batch batch = validation_batch(windows, /*first=*/1, /*sequences=*/2);
  EXPECT_EQ(batch.ids[0][0].item<int64_t>(), 109);
  EXPECT_EQ(batch.ids[0][1].item<int64_t>(), 118);
  EXPECT_EQ(batch.labels[8][1].item<int64_t>(), 127);
}

}  // namespace
}  // namespace shardwise::train::batch_test
