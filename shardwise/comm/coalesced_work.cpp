#include "shardwise/comm/coalesced_work.h"

#include <algorithm>

#include "shardwise/comm/done_work.h"

namespace shardwise::comm {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Polls all works: a receive makes progress only when it is polled.
bool CoalescedWork::isCompleted() {
  bool all = true;
  for (const auto& work : works_) all &= work->isCompleted();
  return all;
}

bool CoalescedWork::isSuccess() const {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr error = work->exception()) return error;
  }
  return nullptr;
}

bool CoalescedWork::wait(milliseconds timeout) {
  const Clock::time_point end = Clock::now() + timeout;
  for (const auto& work : works_) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    work->wait(timeout == kNoTimeout ? kNoTimeout : std::max(left, milliseconds(1)));
  }
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> results;
  for (const auto& work : works_) {
    for (const at::Tensor& result : work->result()) results.push_back(result);
  }
  return results;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  for (const auto& work : works_) {
    if (auto future = work->getFuture(); future->hasError()) return future;
  }
  return DoneWork(rank_, opType_, result()).getFuture();
}

}  // namespace shardwise::comm
