#include "shardwise/comm/shm/work.h"

namespace shardwise::comm::shm {

bool ReceiveWork::isCompleted() {
  if (exception_) return true;
  if (!polled_since_) polled_since_ = std::chrono::steady_clock::now();
  try {
    return transport_->inbox().poll(*receive_, *polled_since_);
  } catch (const c10::Error&) {
    exception_ = std::current_exception();
    return true;
  }
}

bool ReceiveWork::wait(std::chrono::milliseconds timeout) {
  if (exception_) std::rethrow_exception(exception_);
  transport_->inbox().wait(*receive_, timeout == kNoTimeout ? transport_->channel().timeout() : timeout);
  return true;
}

}  // namespace shardwise::comm::shm
