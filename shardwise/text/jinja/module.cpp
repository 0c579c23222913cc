// The module that chat_template.cpp opens when a template is rendered for the first time, so that a program
// which renders none loads no Python (docs/adr/0011). It holds CPython with render.py and nothing else.
#include <pybind11/embed.h>

#include <stdexcept>
#include <string>

#include "shardwise/text/jinja/render_source.h"  // made of render.py by cmake/jinja.cmake

namespace py = pybind11;

namespace {

void check(const PyStatus& status) {
  if (PyStatus_Exception(status)) throw std::runtime_error(status.err_msg);
}

/// Python as .venv has it: no variables of the caller's environment, no user's directories, no signal
/// handlers.
void start_python() {
  PyPreConfig preconfig;
  PyPreConfig_InitIsolatedConfig(&preconfig);
  preconfig.utf8_mode = 1;
  preconfig.allocator = PYMEM_ALLOCATOR_MALLOC;  // memory that a leak checker sees through
  check(Py_PreInitialize(&preconfig));
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.write_bytecode = 0;
  check(PyConfig_SetBytesString(&config, &config.executable, SHARDWISE_PYTHON));
  py::initialize_interpreter(&config, /*argc=*/0, /*argv=*/nullptr, /*add_program_dir_to_path=*/false);
}

/// render.py's `answer`, for good: Python is not ended before the process.
const py::object* find_answer() {
  const py::dict scope;
  py::exec(kRenderSource, scope);
  return new py::object(scope["answer"]);
}

/// Python's lock, for a thread that Python may not know yet. Taken by CPython's own means: with
/// pybind11 2.10's, threads that had waited for another to start Python crashed.
class Turn {
 public:
  Turn() : state_(PyGILState_Ensure()) {}
  ~Turn() { PyGILState_Release(state_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  PyGILState_STATE state_;
};

const py::object* start() {
  start_python();
  const py::object* answer = find_answer();
  PyEval_SaveThread();  // gives up the lock, which each call takes
  return answer;
}

}  // namespace

/// From a request of chat_template.cpp to an answer, both JSON. Errors: std::runtime_error.
extern "C" __attribute__((visibility("default"))) void shardwise_render_chat(const std::string& request,
                                                                             std::string& answer) try {
  static const py::object* const function = start();
  const Turn turn;
  answer = (*function)(request).cast<std::string>();
} catch (const std::exception& error) {
  throw std::runtime_error(error.what());  // of a type that both sides know
}
