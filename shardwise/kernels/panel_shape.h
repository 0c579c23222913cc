// The layout of a packed weight [out, in] in memory, the same for all instruction sets (docs/adr/0023).
//
// A panel holds 64 outputs. Its columns are cut into runs; a run is a number of lines of 256 bytes, four
// bytes of each output:
//
//   bf16   columns 2s and 2s+1 of line s
//   int8   columns 4s … 4s+3 of line s, a byte each
//   int4   columns 8s … 8s+7: byte j holds column 8s+j in its lower and column 8s+4+j in its upper half
//
// Before the first run of a group of quantized columns is its header: 64 scales in fp16, then, if the weight
// has them, 64 zero points of a byte. value = (quantized − zero point) · scale. Runs are padded to full
// lines.
//
// For sources that are compiled per instruction set too: no library header.
#pragma once
#include <cstdint>

namespace shardwise::kernels {

inline constexpr int64_t kPanelOutputs = 64;                   // outputs in a panel
inline constexpr int64_t kPanelLineBytes = 4 * kPanelOutputs;  // four bytes of each output

/// Consecutive columns of a panel. Offsets are in bytes from the panel's begin.
struct PanelRun {
  int64_t header;  // of the run's group
  int64_t begin;   // of the first line
  int64_t lines;   // of kPanelLineBytes
};

/// The layout of a panel, which all panels of a weight share.
struct PanelShape {
  const PanelRun* runs;  // in the order of the columns; not owned
  int64_t run_count;     // elements of `runs`
  int64_t bits;          // of a value: 4, 8, or 16 for bf16
  bool has_zero_points;  // otherwise all zero points are 2^(bits − 1)

  /// Returns the columns of a line: the number of values in an output's four bytes.
  constexpr int64_t columns_per_line() const { return 32 / bits; }
  /// Returns the bytes of a group's header, its scales and any zero points; 0 for bf16.
  constexpr int64_t header_bytes() const {
    return bits == 16 ? 0 : kPanelOutputs * (has_zero_points ? 3 : 2);
  }
  /// Returns the zero point of all outputs if none are stored. For 4 and 8 bits.
  constexpr int32_t symmetric_zero_point() const { return bits == 4 ? 8 : 128; }
};

}  // namespace shardwise::kernels
