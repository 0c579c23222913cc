#include "shardwise/comm/done_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace shardwise::comm {

using c10::ivalue::Future;

bool DoneWork::wait(std::chrono::milliseconds) {
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<Future> DoneWork::getFuture() {
  auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  if (exception_) {
    future->setError(exception_);
  } else {
    future->markCompleted(c10::IValue(results_));
  }
  return future;
}

c10::intrusive_ptr<Future> DoneWork::getFutureResult() {
  auto future = c10::make_intrusive<Future>(c10::IntType::get());
  const auto result = exception_ ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
  future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  return future;
}

}  // namespace shardwise::comm
