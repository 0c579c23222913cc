#include "shardwise/comm/shm/receive_work.h"

#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_types.h"

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
  try {
    transport_->inbox().wait(*receive_, timeout == kNoTimeout ? transport_->channel().timeout() : timeout);
  } catch (const base::CommError&) {
    exception_ = std::current_exception();
    throw;
  }
  return true;
}

// A future could not complete later: only the threads that wait for messages receive them.
c10::intrusive_ptr<c10::ivalue::Future> ReceiveWork::getFuture() {
  TORCH_CHECK_VALUE(isCompleted(), "recv: getFuture needs a completed receive; call wait() first");
  if (exception_) return DoneWork(rank_, opType_, exception_).getFuture();
  return DoneWork(rank_, opType_, result()).getFuture();
}

}  // namespace shardwise::comm::shm
