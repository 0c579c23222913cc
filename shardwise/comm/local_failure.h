// Ends a group whose rank fails by itself, such as out of memory, before or within a collective.
#pragma once
#include <exception>

#include "shardwise/base/error.h"
#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

/// Runs `call` and returns its result. If it fails on this rank alone, aborts the group: the other ranks
/// would wait for this one until their timeouts. A CommError has aborted it already; a ValueError is an
/// argument's, which all ranks reject.
template <class Call>
decltype(auto) abort_if_failing(CollectiveBackend& backend, const Call& call) {
  try {
    return call();
  } catch (const base::CommError&) {
    throw;
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    backend.abort(base::one_line(error));
    throw;
  }
}

}  // namespace shardwise::comm
