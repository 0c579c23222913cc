// Kernels that are right, or wrong in one way: what the emulator must find, and where it must be silent.
#pragma once
#include <cuda_runtime_api.h>

namespace shardwise::emulator_faults {

constexpr int kThreads = 64;  // of a block

// Errors in shared memory.

/// out[i] = in[kThreads − 1 − i] for each of `rows` rows, through shared memory. `waits`: for the writes of
/// the block.
void reverse(float* out, const float* in, int rows, bool waits, cudaStream_t stream);
/// The same, and all rows in one block, one after the other. `waits`: for the reads before the next row's
/// writes.
void reverse_in_turn(float* out, const float* in, int rows, bool waits, cudaStream_t stream);

// Errors in global memory.

/// Copies n floats in packs of 16 bytes, and `more` packs behind them. `shift`: in floats, of both pointers.
void copy_packs(float* to, const float* from, int n, int more, int shift, cudaStream_t stream);
/// Adds 1 to `sum` in each thread of each block. `is_atomic`: by atomicAdd.
void count(unsigned* sum, int blocks, bool is_atomic, cudaStream_t stream);
/// Block 0 writes kThreads values, the others wait for its flag and copy them. `releases`: the flag is stored
/// with release order. `waits`: for the block's writes before the flag. `sets`: the flag at all.
void pass_on(float* to, float* from, unsigned* flag, int blocks, bool releases, bool waits, bool sets,
             cudaStream_t stream);
/// to[i] = 2·from[i].
void twice(float* to, const float* from, int n, cudaStream_t stream);
/// out[i] = 100 times the number of lower lanes that are equal modulo 3, plus the lane two below, or the own
/// one.
void rank_lanes(unsigned* out, cudaStream_t stream);
/// out[i] = the bytes of ~in[i]·2³² + in[i] that selectors[i] numbers, loaded past the caches.
void choose_bytes(unsigned* out, const unsigned* in, const unsigned* selectors, cudaStream_t stream);

// Errors of threads that do not go together.

/// What half of a warp does otherwise than the other half.
enum class Divergence { none, other_barrier, early_exit, longer_loop, outside_mask, absent_lane, other_mask };
/// out[i] = the sum over the warp of the threads' numbers.
void sum_of_warp(float* out, Divergence divergence, cudaStream_t stream);

}  // namespace shardwise::emulator_faults
