// The measured rates of 16-bit inference on a device whose caches may hold what a forward reads.
//
// A token of a small model reads all weights and all cached keys again, in the same order. Those that fit the
// last-level cache come from there; of more, each displaces the next before it is read again. How fast bytes
// are read again is measured for several numbers of bytes, and every operation is measured at both ends: all
// from a cache, all from memory.
#pragma once
#include <cstdint>

#include "shardwise/plan/rate.h"

namespace shardwise::plan {

/// The rates of an operation on weights, or on keys and values.
struct ReadRates {
  Rate from_memory;  // if no cache holds them
  Rate from_cache;   // if a cache holds them all
};

/// The rates of attention to cached keys and values, in their elements. Reading them and multiplying queries
/// by them both take time, so it is measured with one query head for each key and with several.
struct CachedAttentionRates {
  static constexpr double kQueries = 4;  // query heads for each key in `shared`
  ReadRates one_query;                   // one query head for each key
  ReadRates shared;                      // kQueries query heads for each key

  /// Returns the seconds of attention to `elements`, each of which `queries` heads read.
  double seconds(double elements, double queries, double memory_share) const;
};

/// Rates of a device, all of whose node's devices work at once.
struct InferenceRates {
  ReadRates bf16;                         // of products with packed bf16 weights, in FLOP by number of rows
  ReadRates int8;                         // of products with int8 weights, likewise
  ReadRates int4;                         // of products with int4 weights, likewise
  CachedAttentionRates cached_attention;  // of a token of each text
  Rate reading;                           // of bytes that are read again and again, in bytes by their number
  double seconds_per_product;             // to start one, which the rates of products leave out
  double seconds_per_block = 0;           // between a block's operations
  double seconds_per_text = 0;            // more, for each text

  /// Returns the rates of weights of 16, 8 or 4 bits.
  const ReadRates& of_bits(int64_t bits) const { return bits == 4 ? int4 : bits == 8 ? int8 : bf16; }
  /// Returns the part of its bytes that a forward reads from memory if every forward reads the same `bytes`:
  /// from 0, if a cache holds all, to 1.
  double memory_share(double bytes) const;
  /// Returns the seconds of a product of `rows` rows with a weight of 16, 8 or 4 bits.
  double product(double flop, double rows, int64_t bits, double memory_share) const;
};

}  // namespace shardwise::plan
