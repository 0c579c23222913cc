// An error's line ends with one code, also if it quotes another error.
#include "shardwise/base/error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "shardwise/base/files.h"

namespace shardwise::base::error_test {
namespace {

TEST(Error, TheCodeIsMovedToTheEnd) {
  EXPECT_EQ(with_code_last("open [SW0123] /tmp/x: no room"), "open /tmp/x: no room [SW0123]");
  EXPECT_EQ(with_code_last("a rule; got 1 [SW0123]"), "a rule; got 1 [SW0123]");
  EXPECT_EQ(with_code_last("no code"), "no code");
  EXPECT_EQ(with_code_last(""), "");
}

TEST(Error, TheCodeOfTheQuotedErrorRemains) {
  EXPECT_EQ(with_code_last("rank 1: a rule; got 1 [SW0123] [SW0456]"), "rank 1: a rule; got 1 [SW0123]");
  EXPECT_EQ(with_code_last("rank 1 runs [SW0123], rank 0 runs [SW0123]"),
            "rank 1 runs, rank 0 runs [SW0123]");
}

TEST(Error, OtherBracketsAreNoCode) {
  for (const std::string text :
       {"got [SW0123", "got [SW01234]", "got [SX0123]", "got[SW0123]", "got [12, 3]"}) {
    EXPECT_EQ(without_code(text), text);
    EXPECT_EQ(with_code_last(text), text);
  }
}

TEST(Error, MessagesArePrintable) {
  EXPECT_EQ(printable("naïve 並列 \U0001f600 'a\\b'"), "naïve 並列 \U0001f600 'a\\b'");
  EXPECT_EQ(printable("\x1b[31m\r\n\t\x7f"), "\\x1b[31m\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "1m"),
            "\\xc2\\x9b"
            "1m");  // the one-character form of ESC [
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  // Of each invalid sequence all bytes: stray, cut, overlong, a surrogate, beyond U+10FFFF.
  for (const std::string bytes : {"\xff", "\x80", "\xe4\xb8", "\xc0\xaf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                                  "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    std::string escapes;
    for (const char c : bytes) escapes += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    EXPECT_EQ(printable("(" + bytes + ")"), "(" + escapes + ")");
  }
  EXPECT_EQ(one_line(std::runtime_error("a\nb\xff\n")), "a b\\xff");
}

TEST(Error, ConstructorsMoveTheCode) {
  const CommError failure({"barrier", 0, 1, 2, 0.5, 3}, "rank 1 left the group [SW0123]");
  EXPECT_EQ(one_line(failure), "barrier #2: rank 1 left the group; rank 0 waited 0.50 s of 3 s [SW0123]");
  const CommError late({"barrier", 0, 1, 2, 0.301, 0.2996}, "timed out [SW0123]");
  EXPECT_EQ(one_line(late), "barrier #2: timed out; rank 0 waited 0.30 s of 0.3 s [SW0123]");
  EXPECT_EQ(one_line(FileError("open [SW0123]", "/tmp/x", ENOENT)),
            "open /tmp/x: No such file or directory [SW0123]");
}

}  // namespace
}  // namespace shardwise::base::error_test
