#include "shardwise/comm/c10d_types.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"

namespace shardwise::comm {
namespace {

using c10::ivalue::Future;
using c10d::ReduceOp;
using std::chrono::milliseconds;

struct Pair {
  Reduce ours;
  ReduceOp::RedOpType theirs;
};
constexpr Pair kPairs[] = {{Reduce::sum, ReduceOp::SUM},         {Reduce::average, ReduceOp::AVG},
                           {Reduce::product, ReduceOp::PRODUCT}, {Reduce::min, ReduceOp::MIN},
                           {Reduce::max, ReduceOp::MAX},         {Reduce::bit_and, ReduceOp::BAND},
                           {Reduce::bit_or, ReduceOp::BOR},      {Reduce::bit_xor, ReduceOp::BXOR}};

}  // namespace

Reduce from_c10d(const ReduceOp& op, const std::string& backend, const char* call) {
  const Pair* const found = std::ranges::find(kPairs, op.op_, &Pair::theirs);
  TORCH_CHECK_VALUE(found != std::end(kPairs), call, ": backend ", backend,
                    " supports SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR; got ",
                    op.op_ == ReduceOp::PREMUL_SUM ? "PREMUL_SUM" : "UNUSED", " [SW0488]");
  return found->ours;
}

ReduceOp to_c10d(Reduce reduce) {
  return std::ranges::find(kPairs, reduce, &Pair::ours)->theirs;
}

const char* call_name(c10d::OpType op) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int type = 0; type <= int(c10d::OpType::COALESCED); ++type) {
      all.push_back(c10d::opTypeToString(c10d::OpType(type)));
      for (char& letter : all.back()) letter = char(std::tolower(letter));
    }
    return all;
  }();
  return names.at(size_t(op)).c_str();
}

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

bool ReceiveWork::isCompleted() {
  if (exception_) return true;
  try {
    return receive_->poll();
  } catch (const c10::ValueError&) {
    throw;  // refused: the receive goes on
  } catch (...) {
    exception_ = std::current_exception();
    return true;
  }
}

bool ReceiveWork::wait(milliseconds timeout) {
  if (exception_) std::rethrow_exception(exception_);
  try {
    receive_->wait(timeout == kNoTimeout ? std::nullopt : std::optional(timeout));
  } catch (const c10::ValueError&) {
    throw;  // refused: the receive goes on
  } catch (...) {
    exception_ = std::current_exception();
    throw;
  }
  return true;
}

// A future could not complete later, because only this rank's calls receive messages.
c10::intrusive_ptr<Future> ReceiveWork::getFuture() {
  TORCH_CHECK_VALUE(isCompleted(), "recv: getFuture needs a completed receive; call wait() first [SW0301]");
  if (exception_) return DoneWork(rank_, opType_, exception_).getFuture();
  return DoneWork(rank_, opType_, result()).getFuture();
}

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
  const auto end = std::chrono::steady_clock::now() + base::capped(timeout);
  for (const auto& work : works_) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
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
