// Records what one thread does, op by op: the data of --profile.
//
// An op that is not recorded costs one read of a thread-local pointer.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace shardwise::base {

/// One run of an op. Ops of a thread nest.
struct ProfiledRun {
  const char* op;           // a string literal, such as "rms_norm"
  int32_t part;             // index into Profile::parts()
  int32_t depth;            // 0: not within another op
  int64_t begin_ns;         // of the steady clock, which the processes of a machine share
  int64_t duration_ns = 0;  // with the ops within
  int64_t nested_ns = 0;    // of the ops directly within
  int64_t waiting_ns = 0;   // the part of duration_ns spent waiting for other ranks
};

/// The runs of one thread's ops while a Recording of it exists.
class Profile {
 public:
  /// Records the ops of this thread as long as it lives. One at a time for each thread.
  class Recording {
   public:
    explicit Recording(Profile& profile);
    ~Recording();
    Recording(const Recording&) = delete;
  };

  /// Returns the runs in the order in which they began.
  const std::vector<ProfiledRun>& runs() const { return runs_; }
  /// Returns the names of parts of the model: those of parameters; the first is empty, for ops before any.
  const std::vector<std::string>& parts() const { return parts_; }

 private:
  friend class ProfiledOp;
  friend void enter_part(const std::string& parameter);
  std::vector<ProfiledRun> runs_;
  std::vector<size_t> open_;  // indices of the runs that have not ended, outermost first
  std::vector<std::string> parts_ = {""};
  std::unordered_map<std::string, int32_t> index_of_part_ = {{"", 0}};
  int32_t part_ = 0;
};

/// An op's scope.
class ProfiledOp {
 public:
  /// `op`: a string literal.
  explicit ProfiledOp(const char* op);
  ~ProfiledOp();
  ProfiledOp(const ProfiledOp&) = delete;
  /// Adds to the time that the op has waited for other ranks.
  void add_waiting(int64_t ns);

 private:
  Profile* profile_;  // null: not recorded
  size_t run_ = 0;
};

/// Says that this thread's ops now belong to the part of the model around `parameter`. Ops without
/// parameters, such as an activation, belong to the part of the op before them, in forward as in backward.
void enter_part(const std::string& parameter);

}  // namespace shardwise::base
