// Limits of one call of Python code: its time and the memory of its objects.
#pragma once
#include <Python.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace shardwise::text::jinja {

/// Counts the bytes of Python's objects from now on. Must be called before Python is initialized.
void count_python_memory();

/// From construction to destruction, Python's code gets MemoryError for an object that would take more than
/// `bytes` in addition to all present ones, and, in this thread, KeyboardInterrupt between two steps of the
/// interpreter once `seconds` have passed. One at a time; the caller holds the GIL at both ends.
class Limits {
 public:
  Limits(double seconds, int64_t bytes);
  ~Limits();
  Limits(const Limits&) = delete;

 private:
  void interrupt_after(double seconds);

  unsigned long thread_;  // as Python numbers it
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread clock_;
};

}  // namespace shardwise::text::jinja
