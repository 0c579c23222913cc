// The tail of the normal distribution in fp32, for the CPU and for GPUs.
#pragma once

namespace shardwise::kernels {

/// Φ(−|z|) = e^(−z²/2)/2 · t · p(t), where t = 1/(1 + kSlope · |z|) and p is the polynomial with these
/// coefficients, c8 · t⁸ + …
/// + c0. It fits erfcx(u)/t, where u = |z|/√2 and kSlope = 0.3/√2, for 0 <= u <= 9.5 within 2·10⁻⁸ (least
/// squares, reweighted toward minimax).
struct GeluTail {
  static constexpr float kSlope = 0.212132034f;
  static constexpr float c8 = -0.129434288f, c7 = 0.485097468f, c6 = -0.511228502f, c5 = 0.546397388f,
                         c4 = -0.0936328322f, c3 = 0.214436933f, c2 = 0.148482278f, c1 = 0.170691952f,
                         c0 = 0.169189617f;
};

}  // namespace shardwise::kernels
