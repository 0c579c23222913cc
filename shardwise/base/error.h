// Error types. Every message is one line, `op: rule; got values; hint [SW0123]`, which ends with the code of
// its rule in docs/errors.md (tools/check_errors).
//
// A usage error is c10::ValueError (TORCH_CHECK_VALUE), and a broken invariant is TORCH_INTERNAL_ASSERT. This
// file adds CommError, for peers and transports that fail, and CollectiveError, a usage error that all ranks
// throw together. The library never exits.
#pragma once
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::base {

/// A collective failed because a peer exited, timed out, left the group or called a different collective.
class CommError : public c10::DistBackendError {
 public:
  /// The collective that failed and the time that this rank waited in it.
  struct Where {
    std::string op;         // "all_reduce"
    int rank = 0;           // this rank
    int peer = -1;          // the rank that this rank waited for; -1 if no single rank caused the error
    uint64_t sequence = 0;  // sequence number of the collective in its group
    double elapsed_s = 0;   // time spent waiting
    double limit_s = 0;     // the group's timeout
  };
  /// Formats the message from `what` and `where`.
  CommError(Where where, const std::string& what);
  /// Returns the collective that failed and the time waited in it.
  const Where& where() const { return where_; }

 private:
  Where where_;
};

/// A usage error that only the ranks can detect. All ranks throw it with the same message; rank 0 prints it.
class CollectiveError : public c10::ValueError {
 public:
  /// The message is `what`.
  explicit CollectiveError(const std::string& what);
};

/// Returns `text` without the codes of errors.
std::string without_code(std::string text);

/// Returns `text` with its code at the end. A text that quotes another error has two codes: keeps only the
/// first, the quoted error's.
std::string with_code_last(const std::string& text);

/// Returns `text`, which may quote a file, as a terminal can show it: `\xNN` stands for each byte of a
/// control character and for each byte that is not part of valid UTF-8.
std::string printable(std::string_view text);

/// Returns `text`, which a user or a file gave, for a message: printable, and cut, with "..." at its end, if
/// that has more than `max_bytes` bytes. A message may quote a path in full; anything else is shortened, or
/// formatted by `shown` (json.h).
std::string shortened(std::string_view text, size_t max_bytes = 60);
/// The bytes of another parser's message, which may quote its input, that a message shows.
inline constexpr size_t kMaxReasonBytes = 200;

/// Returns the printable message of `error` on one line, without the C++ stack trace that c10 appends.
std::string one_line(const std::exception& error);

}  // namespace shardwise::base
