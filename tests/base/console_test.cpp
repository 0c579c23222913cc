#include "shardwise/base/console.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/base/captured.h"

namespace shardwise::base::console_test {
namespace {

TEST(Console, APipeGetsPlainLinesOnly) {
  test::CapturedPipe pipe;
  Console console(pipe.descriptor());
  EXPECT_FALSE(console.is_terminal());
  console.set_live("bar");
  console.line("first", Color::kRed);
  console.keep_live();
  EXPECT_EQ(pipe.text(), "first\n");
}

TEST(Console, ALineGoesAboveTheLiveOne) {
  test::CapturedTerminal terminal(/*columns=*/40);
  Console console(terminal.descriptor());
  EXPECT_TRUE(console.is_terminal());
  EXPECT_EQ(console.width(), 40);
  console.set_live("bar");
  console.line("text");
  console.keep_live();
  console.keep_live();  // nothing left to keep
  EXPECT_EQ(terminal.text(), "\r\x1b[2Kbar\r\x1b[2Ktext\nbar\n");
}

TEST(Console, TheLiveLineIsCutToTheWidth) {
  test::CapturedTerminal terminal(/*columns=*/6);
  Console console(terminal.descriptor());
  console.set_live("0123456789");
  EXPECT_EQ(terminal.text(), "\r\x1b[2K01234");
}

TEST(Console, ColorsAreForTerminalsWithoutNoColor) {
  const auto colored = [] {
    test::CapturedTerminal terminal(/*columns=*/40);
    Console(terminal.descriptor()).line("text", Color::kRed);
    return terminal.text();
  };
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(colored(), "\x1b[31mtext\x1b[0m\n");
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(colored(), "text\n");
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(colored(), "text\n");
}

}  // namespace
}  // namespace shardwise::base::console_test
