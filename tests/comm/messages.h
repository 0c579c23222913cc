// Helpers for messages through c10d's interface.
#pragma once
#include "tests/comm/backends.h"

namespace shardwise::testing {

inline void send(comm::shm::Backend& backend, const at::Tensor& x, int to, int tag = 0) {
  Tensors tensors = {x};
  backend.send(tensors, to, tag)->wait();
}
/// Posts a receive without waiting for it.
inline WorkPtr irecv(comm::shm::Backend& backend, const at::Tensor& x, int from, int tag = 0) {
  Tensors tensors = {x};
  return backend.recv(tensors, from, tag);
}
inline WorkPtr irecv_any(comm::shm::Backend& backend, const at::Tensor& x, int tag = 0) {
  Tensors tensors = {x};
  return backend.recvAnysource(tensors, tag);
}
inline void recv(comm::shm::Backend& backend, const at::Tensor& x, int from, int tag = 0) {
  irecv(backend, x, from, tag)->wait();
}

/// A message of one number, or its receive buffer.
inline at::Tensor number(int64_t x) {
  return at::empty({1}, at::kLong).fill_(x);
}
inline int64_t received(comm::shm::Backend& backend, int from, int tag = 0) {
  at::Tensor x = number(-1);
  recv(backend, x, from, tag);
  return x.item<int64_t>();
}

}  // namespace shardwise::testing
