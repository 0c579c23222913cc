// The error message of a call that must throw.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "shardwise/base/error.h"

namespace shardwise::test {

/// Returns the message of the `Error` that `call` throws, without its code. Fails the test if it throws none,
/// or if the message has more than one line.
template <typename Error = c10::ValueError, typename Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = base::without_code(error.what_without_backtrace());
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// EXPECT_PRED2(contains, text, part): prints both when it fails.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace shardwise::test
