// The Python module shardwise._C: the shared-memory backend (comm/shm/backend.h) for torch.distributed.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/comm/shm/backend.h"
#include "shardwise/comm/shm/symmetric_memory.h"

namespace shardwise::python {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

c10::intrusive_ptr<c10d::Backend> create_backend(const StorePtr& store, int rank, int size,
                                                 std::chrono::milliseconds timeout) {
  return comm::shm::Backend::connect(*store, rank, size, timeout);
}

/// torch binds this getter for its own backends only.
c10::intrusive_ptr<c10d::Backend::Options> backend_options(c10d::Backend& backend) {
  return backend.getBackendOptions();
}

/// Runs `wait` without the GIL, which torch's bindings of symmetric memory hold.
void wait_without_gil(c10::function_ref<void()> wait) {
  if (PyGILState_Check() == 0) return wait();
  const pybind11::gil_scoped_release released;
  wait();
}

void register_symmetric_memory() {
  comm::shm::register_symmetric_memory(wait_without_gil);
}

}  // namespace
}  // namespace shardwise::python

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  module.def("create_backend", &shardwise::python::create_backend, py::arg("store"), py::arg("rank"),
             py::arg("size"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
             "Returns the backend of the ranks that share `store`. Collective.");
  module.def("backend_options", &shardwise::python::backend_options, py::arg("backend"),
             "Returns a copy of the options of a backend: its name and timeout.");
  module.def("register_symmetric_memory", &shardwise::python::register_symmetric_memory,
             "Registers the symmetric heap with torch.distributed._symmetric_memory.");
}
