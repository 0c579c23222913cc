// The renderer module: CPython with render.py. chat_renderer.cpp loads it at the first rendering, so a
// program that renders no template loads no Python (docs/adr/0011).
#include <dlfcn.h>
#include <pybind11/embed.h>

#include <mutex>
#include <stdexcept>
#include <string>

#include "shardwise/text/jinja/limits.h"
#include "shardwise/text/jinja/render_source.h"  // generated from render.py by cmake/jinja.cmake

namespace py = pybind11;

namespace {

void check(const PyStatus& status) {
  if (PyStatus_Exception(status)) throw std::runtime_error(status.err_msg);
}

/// Returns the directory of jinja2 and markupsafe, which is next to this module.
std::string packages_directory() {
  Dl_info module;
  if (!dladdr(reinterpret_cast<void*>(&check), &module)) throw std::runtime_error("dladdr failed");
  const std::string path = module.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "chat_renderer_packages";
}

/// Starts Python isolated: without PYTHON* environment variables, user site-packages and signal handlers.
void start_python() {
  PyPreConfig preconfig;
  PyPreConfig_InitIsolatedConfig(&preconfig);
  preconfig.utf8_mode = 1;
  preconfig.allocator = PYMEM_ALLOCATOR_MALLOC;  // so that leak checkers can track allocations
  check(Py_PreInitialize(&preconfig));
  shardwise::text::jinja::count_python_memory();
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.write_bytecode = 0;
  config.site_import = 0;  // no packages but those next to this module
  check(PyConfig_SetBytesString(&config, &config.home, SHARDWISE_PYTHON_HOME));
  py::initialize_interpreter(&config, /*argc=*/0, /*argv=*/nullptr, /*add_program_dir_to_path=*/false);
}

/// Returns render.py's `answer`. Never freed, because Python is not finalized before the process exits.
const py::object* find_answer() {
  py::module_::import("sys").attr("path").attr("append")(packages_directory());
  const py::dict scope;
  py::exec(kRenderSource, scope);
  return new py::object(scope["answer"]);
}

/// Holds the GIL, in any thread. Uses CPython's API: with pybind11 2.10's gil_scoped_acquire, threads that
/// waited for another thread to start Python crashed.
class GilLock {
 public:
  GilLock() : state_(PyGILState_Ensure()) {}
  ~GilLock() { PyGILState_Release(state_); }
  GilLock(const GilLock&) = delete;
  GilLock& operator=(const GilLock&) = delete;

 private:
  PyGILState_STATE state_;
};

const py::object* start() {
  start_python();
  const py::object* answer = find_answer();
  PyEval_SaveThread();  // releases the GIL, which each call acquires
  return answer;
}

}  // namespace

/// Renders a request of chat_template.cpp in at most `seconds` and with at most `bytes` more for Python's
/// objects. Request and answer are JSON; an answer with `limit` names the limit that was reached. Throws
/// std::runtime_error.
extern "C" __attribute__((visibility("default"))) void shardwise_render_chat(const std::string& request,
                                                                             double seconds, int64_t bytes,
                                                                             std::string& answer) try {
  static std::mutex one_at_a_time;
  const std::lock_guard turn(one_at_a_time);
  static const py::object* const function = start();
  const GilLock lock;
  try {
    const shardwise::text::jinja::Limits limits(seconds, bytes);
    answer = (*function)(request).cast<std::string>();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_MemoryError) && !error.matches(PyExc_KeyboardInterrupt)) throw;
    answer = error.matches(PyExc_MemoryError) ? R"({"limit": "memory"})" : R"({"limit": "time"})";
  }
} catch (const std::exception& error) {
  throw std::runtime_error(error.what());  // a type that the caller can catch
}
