// The largest one-shot all_reduce: all ranks choose the same algorithm, both algorithms compute the same
// sums, and a saved measurement is used, or rejected with a warning.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "shardwise/base/files.h"
#include "shardwise/comm/shm/control.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/support/environment.h"
#include "tests/support/temporary.h"

namespace shardwise::comm::shm::one_shot_test {
namespace {

using namespace shardwise::testing;
namespace fs = std::filesystem;

constexpr int64_t kItem = 4;

Group connect_limited(const std::string& job, int rank, int size, int64_t one_shot_bytes) {
  ConnectOptions group_options = options(job, rank, size);
  group_options.one_shot_bytes = one_shot_bytes;
  return connect(group_options);
}

int64_t copied_by_sum(const Group& group, at::Tensor& x) {
  const int64_t before = group.counters()[Op::all_reduce].copied_bytes;
  group.all_reduce_(x);
  return group.counters()[Op::all_reduce].copied_bytes - before;
}

/// Checks sums and copied bytes of `numel` elements on a group whose limit is `limit`.
void expect_algorithm(const Group& group, int64_t numel, int64_t limit) {
  const int t = group.size();
  const int64_t bytes = numel * kItem,
                local_slice = base::Split::even("flat", numel, t).range(group.rank()).size() * kItem;
  const at::Tensor partial = value({numel}, group.rank(), at::kFloat), sum = reduced({numel}, t, Reduce::sum);
  at::Tensor unregistered = partial.clone(), in_place = group.empty({numel}, at::kFloat).copy_(partial);
  const bool is_one_shot = bytes <= limit;
  EXPECT_EQ(copied_by_sum(group, in_place), is_one_shot ? bytes : local_slice * (t - 1))
      << numel << " of " << limit;
  EXPECT_EQ(copied_by_sum(group, unregistered),
            is_one_shot || t <= 4 ? bytes : local_slice * (t - 1) + 2 * bytes)
      << numel;
  EXPECT_TRUE(equals(in_place, sum)) << numel << " of " << limit;
  EXPECT_TRUE(equals(unregistered, sum)) << numel << " of " << limit;
}

TEST(OneShot, AppliesUpToTheLimitAndTwoShotAbove) {
  for (const int t : {2, 3, 5}) {
    for (const int64_t limit : {int64_t{0}, int64_t{100}, int64_t(kInlineBytes)}) {
      on_threads(t, [&](int rank, const std::string& job) {
        const Group group = connect_limited(job, rank, t, limit);
        for (const int64_t numel : {0, 1, 24, 25, 26, 1007, 1008, 1009})
          expect_algorithm(group, numel, limit);
      });
    }
  }
}

// With more than four ranks, two-shot writes into slots that one-shot reads, and vice versa: alternates both,
// at both ends of a slot.
TEST(OneShot, AlternatesWithTwoShotInTheSameSlots) {
  on_threads(5, [](int rank, const std::string& job) {
    const Group group = connect_limited(job, rank, 5, /*one_shot_bytes=*/2000);
    for (int i = 0; i < 200; ++i) {
      for (const int64_t numel : {500, 501, 1008, 3}) {
        at::Tensor x = value({numel}, rank + i, at::kFloat);
        group.all_reduce_(x);
        at::Tensor sum = value({numel}, i, at::kFloat);
        for (int peer = 1; peer < 5; ++peer) sum.add_(value({numel}, peer + i, at::kFloat));
        ASSERT_TRUE(equals(x, sum)) << i << ", " << numel;
      }
    }
  });
}

TEST(OneShot, UsesTheLimitOfRankZero) {
  on_threads(3, [](int rank, const std::string& job) {
    const Group group = connect_limited(job, rank, 3, /*one_shot_bytes=*/64 * (rank + 1));
    const auto limit = one_shot_limit(group);
    ASSERT_TRUE(limit);
    EXPECT_EQ(limit->bytes, 64);
    EXPECT_EQ(limit->from, OneShotLimit::From::given);
    EXPECT_EQ(limit->on.ranks, 3);
    EXPECT_FALSE(one_shot_limit(group.without_symmetric_heap()));
    for (const int64_t numel : {16, 17, 48, 49}) expect_algorithm(group, numel, limit->bytes);
  });
}

TEST(OneShot, RejectsALimitBeyondASlot) {
  ConnectOptions group_options("job", 0, 2);
  for (const int64_t bytes : {int64_t{-1}, int64_t(kInlineBytes) + 1}) {
    group_options.one_shot_bytes = bytes;
    EXPECT_THROW(connect(group_options), c10::ValueError) << bytes;
  }
}

TEST(OneShot, DefaultDependsOnWhetherEachRankHasACore) {
  EXPECT_EQ(default_one_shot_limit({2, true}).bytes, 1024);
  EXPECT_EQ(default_one_shot_limit({2, false}).bytes, int64_t(kInlineBytes));
}

/// Sets up an empty cache directory.
class SavedOneShot : public ::testing::Test {
 protected:
  SavedOneShot() {
    environment_.set("XDG_CACHE_HOME", directory_.path());
    name_ = "shardwise/" + fs::path(one_shot_file(on_)).filename().string();
  }
  /// Returns the warning of one_shot_limit.
  std::string warning() const {
    ::testing::internal::CaptureStderr();
    const OneShotLimit limit = one_shot_limit(on_);
    EXPECT_EQ(limit, default_one_shot_limit(on_));
    return ::testing::internal::GetCapturedStderr();
  }
  void expect_rejected(const std::string& text, const std::string& rule) const {
    directory_.put(name_, text);
    const std::string line = warning();
    EXPECT_NE(line.find(rule), std::string::npos) << line;
    EXPECT_NE(line.find(one_shot_file(on_)), std::string::npos) << line;
    EXPECT_NE(line.find("the default of 1024 bytes is used"), std::string::npos) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  }

  const RanksOnCores on_{2, true};
  const test::TemporaryDirectory directory_;
  std::string name_;  // of the file in the directory
  Environment environment_;
};

TEST_F(SavedOneShot, IsUsedByLaterGroupsOfAsManyRanks) {
  const auto limit_of = [](int ranks) {
    OneShotLimit limit;
    std::mutex mutex;
    on_threads(ranks, [&](int rank, const std::string& job) {
      const Group group = connect(options(job, rank, ranks));
      const std::lock_guard lock(mutex);
      limit = *one_shot_limit(group);
    });
    return limit;
  };
  const OneShotLimit before = limit_of(2);
  EXPECT_EQ(before, default_one_shot_limit(before.on));
  for (const int64_t bytes : {int64_t{300}, int64_t{0}, int64_t(kInlineBytes)}) {
    save_one_shot_limit(before.on, bytes);
    EXPECT_EQ(limit_of(2), (OneShotLimit{before.on, bytes, OneShotLimit::From::measured}));
  }
  EXPECT_EQ(limit_of(3).from, OneShotLimit::From::table);
  EXPECT_EQ(one_shot_limit({2, !before.on.core_each}).from, OneShotLimit::From::table);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path() + "/shardwise"), {}), 1);
}

TEST_F(SavedOneShot, IsRejectedWithAWarningWhenDamaged) {
  EXPECT_EQ(warning(), "");
  save_one_shot_limit(on_, 300);
  const std::string good = base::read_text(one_shot_file(on_));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string another = "must be measured on 2 ranks with a core each, ";
  for (const std::string& text :
       {std::string(), std::string("300\n"), good.substr(0, good.size() / 2), with("2 ranks", "3 ranks"),
        with("with a core each", "that share cores"), "\n" + good}) {
    expect_rejected(text, another);
  }
  for (const char* end :
       {"4033\n", "-1\n", "3e2\n", "300", "300\n\n", "300 \n", "\n", "99999999999999999999\n"}) {
    expect_rejected(with("300\n", end),
                    "must end with 'one_shot_bytes ' and a number of bytes from 0 to 4032");
  }
  expect_rejected(with("one_shot_bytes", "bytes"), "; got 'bytes 300");
  expect_rejected(std::string(5000, ' ') + good, "must be at most 4096 bytes");
  directory_.put(name_, good);
  EXPECT_EQ(one_shot_limit(on_).bytes, 300);
  fs::remove(one_shot_file(on_));
  fs::create_directory(one_shot_file(on_));
  EXPECT_NE(warning().find("the default of 1024 bytes is used"), std::string::npos);
}

TEST_F(SavedOneShot, IsInTheCacheDirectoryOrThatOfHome) {
  EXPECT_EQ(one_shot_file(on_), directory_ / name_);
  environment_.set("HOME", "/home/somebody");
  environment_.set("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(one_shot_file(on_), "/home/somebody/.cache/" + name_);
  environment_.set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(one_shot_file(on_), "/home/somebody/.cache/" + name_);
  environment_.set("HOME", std::nullopt);
  EXPECT_EQ(one_shot_file(on_), "");
  EXPECT_EQ(warning(), "");
}

}  // namespace
}  // namespace shardwise::comm::shm::one_shot_test
