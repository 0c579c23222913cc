#include "shardwise/checkpoint/collective_errors.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::checkpoint {
namespace {

/// Returns the highest rank that failed, or −1.
int64_t failed_rank(const comm::Group& group, bool has_failed) {
  const int64_t local = has_failed ? group.rank() : -1;
  return group
      .all_reduce(at::full({1}, local, at::TensorOptions(at::kLong).device(group.device())),
                  comm::Reduce::max)
      .item<int64_t>();
}

}  // namespace

void all_ranks_or_throw(const comm::Group& group, const std::string& op, const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    try {
      failed_rank(group, true);
      // NOLINTNEXTLINE(bugprone-empty-catch): a peer failed too, and the local error explains more.
    } catch (const std::exception&) {
    }
    throw;
  }
  const int64_t rank = failed_rank(group, false);
  if (rank < 0) return;
  C10_THROW_ERROR(DistBackendError, c10::str(op, ": must succeed on every rank; got a failure on rank ", rank,
                                             "; see the error message of that rank [SW0346]"));
}

std::chrono::milliseconds wait_on_rank_0(const comm::Group& group, std::chrono::milliseconds most) {
  const comm::CollectiveBackend* backend = group.backend();
  return backend ? std::min(most, backend->timeout() / 4) : most;
}

bool ValidationErrors::collect(const std::function<void()>& check) {
  try {
    check();
    return true;
  } catch (const c10::ValueError& error) {
    add(error);
  } catch (const base::FileError& error) {
    add(error);
  }
  return false;
}

void ValidationErrors::add(const ValidationErrors& later) {
  if (first_.empty()) first_ = later.first_;
}

void ValidationErrors::add(const c10::Error& error) {
  if (first_.empty()) first_ = base::one_line(error);
}

void ValidationErrors::raise_on_any_rank(const comm::Group& group) const {
  const std::string text = comm::first_text(first_, group);
  if (!text.empty()) throw base::CollectiveError(text);
}

}  // namespace shardwise::checkpoint
