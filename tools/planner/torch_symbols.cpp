// The functions of libc10 that the rooms call, for WebAssembly, where only torch's headers exist: errors
// without backtraces.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace c10 {

Error::Error(SourceLocation, std::string msg) : Error(std::move(msg)) {}

Error::Error(std::string msg, Backtrace backtrace, const void* caller)
    : msg_(std::move(msg)),
      backtrace_(std::move(backtrace)),
      what_without_backtrace_(msg_),
      caller_(caller) {}

const char* Error::what() const noexcept {
  return what_without_backtrace_.c_str();
}

namespace detail {

void torchCheckFail(const char*, const char*, uint32_t, const std::string& msg) {
  throw Error(msg);
}

void torchCheckFail(const char*, const char*, uint32_t, const char* msg) {
  throw Error(msg);
}

void torchInternalAssertFail(const char*, const char*, uint32_t, const char* condition, const char* message) {
  throw Error(str(condition, message));
}

void torchInternalAssertFail(const char*, const char*, uint32_t, const char* condition,
                             const std::string& message) {
  throw Error(str(condition, message));
}

}  // namespace detail
}  // namespace c10
