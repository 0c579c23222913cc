#include "shardwise/comm/mpi/transfers.h"

#include <algorithm>
#include <mutex>

#include "shardwise/comm/mpi/process.h"

namespace shardwise::comm::mpi {
namespace {

/// Keeps the owners alive forever, see Transfers.
void leak(std::vector<std::any> owners) {
  static std::mutex mutex;
  static auto* const leaked = new std::vector<std::vector<std::any>>;
  const std::lock_guard guard(mutex);
  leaked->push_back(std::move(owners));
}

template <class Start>
void in_parts(int64_t bytes, int64_t part_bytes, const Start& start) {
  for (int64_t begin = 0; begin < bytes; begin += part_bytes)
    start(begin, static_cast<int>(std::min(part_bytes, bytes - begin)));
}

}  // namespace

Transfers::Transfers(Transfers&& other) noexcept
    : process_(other.process_),
      part_bytes_(other.part_bytes_),
      parts_(std::move(other.parts_)),
      retained_(std::move(other.retained_)),
      done_(other.done_),
      error_(other.error_),
      failed_peer_(other.failed_peer_) {
  other.parts_.clear();
  other.done_ = 0;
}

Transfers::~Transfers() {
  if (done_ == parts_.size()) return;
  if (process_->is_fork()) return;  // whose copies of the owners MPI does not write to
  const auto guard = process_->try_lock();
  for (size_t i = done_; guard && i < parts_.size(); ++i) {
    if (parts_[i].is_received && parts_[i].request != MPI_REQUEST_NULL) MPI_Cancel(&parts_[i].request);
  }
  leak(std::move(retained_));
}

// advance() tests the requests.
// NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
void Transfers::send(const void* data, int64_t bytes, const Address& to) {
  in_parts(bytes, part_bytes_, [&](int64_t begin, int count) {
    const auto guard = process_->lock();
    Part part{MPI_REQUEST_NULL, to.peer, count, /*is_received=*/false};
    const int code = MPI_Isend(static_cast<const std::byte*>(data) + begin, count, MPI_BYTE, to.peer, to.tag,
                               to.comm, &part.request);
    if (code != MPI_SUCCESS) fail(code, to.peer);
    parts_.push_back(part);
  });
}

void Transfers::start_receive(void* data, int bytes, int expected_bytes, const Address& from) {
  const auto guard = process_->lock();
  Part part{MPI_REQUEST_NULL, from.peer, expected_bytes, /*is_received=*/true};
  const int code = MPI_Irecv(data, bytes, MPI_BYTE, from.peer, from.tag, from.comm, &part.request);
  if (code != MPI_SUCCESS) fail(code, from.peer);
  parts_.push_back(part);
}
// NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

void Transfers::receive(void* data, int64_t bytes, const Address& from) {
  in_parts(bytes, part_bytes_, [&](int64_t begin, int count) {
    start_receive(static_cast<std::byte*>(data) + begin, count, count, from);
  });
}

void Transfers::receive_at_most(void* data, int bytes, const Address& from) {
  start_receive(data, bytes, /*expected_bytes=*/-1, from);
}

void Transfers::send(const at::Tensor& x, const Address& to) {
  if (x.numel() == 0) return;
  retain(x);
  send(x.const_data_ptr(), int64_t(x.nbytes()), to);
}

void Transfers::receive(const at::Tensor& x, const Address& from) {
  if (x.numel() == 0) return;
  retain(x);
  receive(x.mutable_data_ptr(), int64_t(x.nbytes()), from);
}

void Transfers::fail(int code, int peer) {
  if (error_ != MPI_SUCCESS) return;
  error_ = code;
  failed_peer_ = peer;
}

// A part that failed may be complete as well: then its memory may be reused.
bool Transfers::test(Part& part) {
  int is_done = 0, bytes = 0;
  MPI_Status status;
  const int code = MPI_Test(&part.request, &is_done, &status);
  if (code != MPI_SUCCESS) fail(code, part.peer);
  if (!is_done || code != MPI_SUCCESS || !part.is_received) return is_done;
  part.peer = status.MPI_SOURCE;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (part.bytes >= 0 && bytes != part.bytes) fail(MPI_ERR_COUNT, part.peer);
  return true;
}

bool Transfers::advance(size_t count) {
  const auto guard = process_->lock();
  while (error_ == MPI_SUCCESS && done_ < count && test(parts_[done_])) ++done_;
  return done_ >= count || error_ != MPI_SUCCESS;
}

}  // namespace shardwise::comm::mpi
