// A user whom permissions stop, also if the tests run as root.
#pragma once
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shardwise::test {

/// Makes this thread one of such a user while it lives.
class WithoutRights {
 public:
  WithoutRights() { set(/*nobody*/ 65534); }
  ~WithoutRights() { set(0); }

 private:
  // The call of the C library would change all threads.
  void set(uid_t user) const {
    if (was_root_) {
      EXPECT_EQ(syscall(SYS_setresuid, -1, user, -1), 0);
    }
  }
  const bool was_root_ = geteuid() == 0;
};

}  // namespace shardwise::test
