// A call that must end with a CommError: what it tells.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::testing {

/// What `call` fails with, and its line.
inline base::CommError::Where failure_of(const std::function<void()>& call, std::string& line) {
  try {
    call();
    ADD_FAILURE() << "no error";
    return {};
  } catch (const base::CommError& error) {
    line = base::one_line(error);
    return error.where();
  }
}

}  // namespace shardwise::testing
