// Checks of arguments that Group and C10dBackend have in common. All throw c10::ValueError that names the
// call.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardwise::comm {

/// Checks that a group of `size` ranks has `rank`.
void check_rank(int64_t rank, int size, const char* name);
/// Checks that `x` is no conjugated or negated view: backends copy memory, and that of such a view holds the
/// values before conjugation or negation.
void check_holds_values(const at::Tensor& x, const char* name);
/// Checks that no elements of `x`, into which a message is received, share memory, as those of an expanded
/// tensor do: the message could not be copied into it.
void check_distinct_elements(const at::Tensor& x, const char* name);

}  // namespace shardwise::comm
