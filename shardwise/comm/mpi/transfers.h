// Messages between this rank and others that are under way: started at once, in parts that MPI's int counts
// hold, and looked at until they are done.
#pragma once
#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <any>
#include <vector>

namespace shardwise::comm::mpi {

class Process;

/// Parts of messages that are never cut.
inline constexpr int64_t kWhole = int64_t{1} << 30;

struct Address {
  MPI_Comm comm;
  int peer;
  int tag = 0;
};

/// What is not done when a Transfers dies stays MPI's for good, with all that it refers to: a request cannot
/// be taken back, and memory that it may still write to must not be used again.
class Transfers {
 public:
  /// `part_bytes`: of one message at most.
  Transfers(Process& process, int64_t part_bytes) : process_(&process), part_bytes_(part_bytes) {}
  ~Transfers();
  Transfers(Transfers&& other) noexcept;
  Transfers& operator=(Transfers&&) = delete;

  /// Nothing happens for tensors without elements; the others are contiguous and live until they are done.
  void send(const at::Tensor& x, const Address& to);
  void receive(const at::Tensor& x, const Address& from);
  /// Memory that `keep` or the caller holds.
  void send(const void* data, int64_t bytes, const Address& to);
  void receive(void* data, int64_t bytes, const Address& from);
  /// One part, which may be shorter.
  void receive_at_most(void* data, int bytes, const Address& from);
  void keep(std::any owner) { kept_.push_back(std::move(owner)); }

  size_t count() const { return parts_.size(); }
  /// Lets MPI work; whether the first `count` parts are done, or one has failed.
  bool advance(size_t count);
  bool advance() { return advance(count()); }
  /// Whom the part that has failed is with, else the first that is not done.
  int peer() const { return error_ == MPI_SUCCESS ? parts_[done_].peer : failed_peer_; }
  /// The sender of a part that is done.
  int source(size_t part) const { return parts_[part].peer; }
  /// MPI_SUCCESS unless one has failed.
  int error() const { return error_; }
  /// Of the messages to those peers that `counts` holds for.
  template <class Counts>
  int64_t sent_bytes(const Counts& counts) const {
    int64_t bytes = 0;
    for (const Part& part : parts_) bytes += !part.is_received && counts(part.peer) ? part.bytes : 0;
    return bytes;
  }

 private:
  struct Part {
    MPI_Request request;
    int peer;
    int bytes;  // below 0, where it is received: any number
    bool is_received;
  };
  void start_receive(void* data, int bytes, int expected_bytes, const Address& from);
  bool test(Part& part);
  void fail(int code, int peer);

  Process* process_;
  int64_t part_bytes_;
  std::vector<Part> parts_;
  std::vector<std::any> kept_;
  size_t done_ = 0;          // from the first on
  int error_ = MPI_SUCCESS;  // the first
  int failed_peer_ = -1;
};

}  // namespace shardwise::comm::mpi
