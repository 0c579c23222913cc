#include "shardwise/base/profile.h"

#include <chrono>

namespace shardwise::base {
namespace {

thread_local Profile* recording = nullptr;

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Profile::Recording::Recording(Profile& profile) {
  recording = &profile;
}
Profile::Recording::~Recording() {
  recording = nullptr;
}

ProfiledOp::ProfiledOp(const char* op) : profile_(recording) {
  if (!profile_) return;
  run_ = profile_->runs_.size();
  profile_->runs_.push_back({.op = op,
                             .part = profile_->part_,
                             .depth = static_cast<int32_t>(profile_->open_.size()),
                             .begin_ns = now_ns()});
  profile_->open_.push_back(run_);
}

ProfiledOp::~ProfiledOp() {
  if (!profile_) return;
  ProfiledRun& run = profile_->runs_[run_];
  run.duration_ns = now_ns() - run.begin_ns;
  profile_->open_.pop_back();
  if (!profile_->open_.empty()) profile_->runs_[profile_->open_.back()].nested_ns += run.duration_ns;
}

void ProfiledOp::add_waiting(int64_t ns) {
  if (profile_) profile_->runs_[run_].waiting_ns += ns;
}

void enter_part(const std::string& parameter) {
  if (!recording) return;
  const auto next = static_cast<int32_t>(recording->parts_.size());
  const auto [entry, is_new] = recording->index_of_part_.try_emplace(parameter, next);
  if (is_new) recording->parts_.push_back(parameter);
  recording->part_ = entry->second;
}

}  // namespace shardwise::base
