#include "shardwise/base/console.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/base/captured.h"

namespace shardwise::base::console_test {
namespace {

TEST(Console, WritesPlainLinesToAPipe) {
  test::CapturedPipe pipe;
  Console console(pipe.descriptor());
  EXPECT_FALSE(console.is_terminal());
  console.set_progress_line("bar");
  console.line("first", Color::red);
  console.finish_progress_line();
  EXPECT_EQ(pipe.text(), "first\n");
}

TEST(Console, WritesLinesAboveTheProgressLine) {
  test::CapturedTerminal terminal(/*columns=*/40);
  Console console(terminal.descriptor());
  EXPECT_TRUE(console.is_terminal());
  EXPECT_EQ(console.width(), 40);
  console.set_progress_line("bar");
  console.line("text");
  console.finish_progress_line();
  console.finish_progress_line();  // the second call has no effect
  EXPECT_EQ(terminal.text(), "\r\x1b[2Kbar\r\x1b[2Ktext\nbar\n");
}

TEST(Console, TruncatesTheProgressLineToTheWidth) {
  test::CapturedTerminal terminal(/*columns=*/6);
  Console console(terminal.descriptor());
  console.set_progress_line("0123456789");
  EXPECT_EQ(terminal.text(), "\r\x1b[2K01234");
}

TEST(Console, UsesColorsOnlyOnTerminalsWithoutNoColor) {
  const auto colored = [](Color color = Color::red) {
    test::CapturedTerminal terminal(/*columns=*/40);
    Console(terminal.descriptor()).line("text", color);
    return terminal.text();
  };
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(colored(), "\x1b[31mtext\x1b[0m\n");
  EXPECT_EQ(colored(Color::yellow), "\x1b[33mtext\x1b[0m\n");
  EXPECT_EQ(colored(Color::none), "text\n");
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(colored(), "text\n");
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(colored(), "text\n");
}

}  // namespace
}  // namespace shardwise::base::console_test
