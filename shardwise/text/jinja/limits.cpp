#include "shardwise/text/jinja/limits.h"

#include <malloc.h>

#include <chrono>
#include <iterator>
#include <limits>

namespace shardwise::text::jinja {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Guarded by the GIL, which every caller of the counted domains holds.
int64_t used = 0;              // bytes of all objects
int64_t allowed = kUnlimited;  // the largest value that `used` may reach

/// The domains of objects and of their arrays. What the interpreter itself needs, such as the state of a
/// thread, has another domain, in which a failure would end the process.
constexpr PyMemAllocatorDomain kDomains[] = {PYMEM_DOMAIN_OBJ, PYMEM_DOMAIN_MEM};
PyMemAllocatorEx inner[std::size(kDomains)];  // their allocators, which those below call: malloc

bool fits(size_t bytes) {
  return bytes <= size_t(kUnlimited - used) && used + int64_t(bytes) <= allowed;
}

int64_t size_of(void* p) {
  return p == nullptr ? 0 : int64_t(malloc_usable_size(p));
}

void* counted(void* p) {
  used += size_of(p);
  return p;
}

void* allocate(void* context, size_t bytes) {
  const auto* from = static_cast<PyMemAllocatorEx*>(context);
  return fits(bytes) ? counted(from->malloc(from->ctx, bytes)) : nullptr;
}

void* allocate_zeros(void* context, size_t count, size_t bytes) {
  const auto* from = static_cast<PyMemAllocatorEx*>(context);
  size_t product = 0;
  if (__builtin_mul_overflow(count, bytes, &product) || !fits(product)) return nullptr;
  return counted(from->calloc(from->ctx, count, bytes));
}

void* reallocate(void* context, void* old, size_t bytes) {
  const auto* from = static_cast<PyMemAllocatorEx*>(context);
  const int64_t before = size_of(old);
  if (int64_t(bytes) > before && !fits(bytes - size_t(before))) return nullptr;
  void* p = from->realloc(from->ctx, old, bytes);
  if (p != nullptr) used += size_of(p) - before;
  return p;
}

void release(void* context, void* p) {
  const auto* from = static_cast<PyMemAllocatorEx*>(context);
  used -= size_of(p);
  from->free(from->ctx, p);
}

}  // namespace

void count_python_memory() {
  for (size_t i = 0; i < std::size(kDomains); ++i) {
    PyMem_GetAllocator(kDomains[i], &inner[i]);
    PyMemAllocatorEx counting{&inner[i], allocate, allocate_zeros, reallocate, release};
    PyMem_SetAllocator(kDomains[i], &counting);
  }
}

Limits::Limits(double seconds, int64_t bytes)
    : thread_(PyThread_get_thread_ident()), clock_([this, seconds] { interrupt_after(seconds); }) {
  allowed = used + bytes;
}

Limits::~Limits() {
  allowed = kUnlimited;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  PyThreadState* const state = PyEval_SaveThread();  // the clock may be waiting for the GIL
  clock_.join();
  PyEval_RestoreThread(state);
  PyThreadState_SetAsyncExc(thread_, nullptr);  // one that came after the template had ended
}

void Limits::interrupt_after(double seconds) {
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_over_; })) return;
  lock.unlock();
  const PyGILState_STATE state = PyGILState_Ensure();
  PyThreadState_SetAsyncExc(thread_, PyExc_KeyboardInterrupt);  // no Exception: jinja2 catches those
  PyGILState_Release(state);
}

}  // namespace shardwise::text::jinja
