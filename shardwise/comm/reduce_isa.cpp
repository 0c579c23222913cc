// Reductions over the ranks' buffers; compiled once per instruction set (cmake/room.cmake), so no library
// headers.
//
// A block of every source is folded into an accumulator that stays in the L1 cache, then rounded into one
// target and copied to the others. Each source is read once, each target is written once, and targets may be
// sources. Two sources are reduced directly into their targets, without an accumulator, by the same
// operations.
#include "shardwise/comm/reduce_isa.h"

#include "shardwise/base/element.h"

namespace shardwise::comm::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlock = 1024;

template <typename T>
struct Native {
  using Stored = T;
  using Accumulator = T;
  static T load(T x) { return x; }
  static T round(T x) { return x; }
};

// bf16 or fp16. Stored as integers: GCC does not vectorize loops that copy structs.
template <typename T>
struct SixteenBit {
  using Stored = uint16_t;
  using Accumulator = float;
  static float load(uint16_t x) { return base::widen(T{x}); }
  static uint16_t round(float x) { return base::narrow<T>(x).bits; }
};

// Any nonzero byte is true; 0 or 1 is stored.
struct Bool {
  using Stored = uint8_t;
  using Accumulator = uint8_t;
  static uint8_t load(uint8_t x) { return x != 0; }
  static uint8_t round(uint8_t x) { return x; }
};

struct NoFinish {
  template <typename T>
  static T finish(T x, int) {
    return x;
  }
};

struct Sum : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a + b;
  }
};

struct Average : Sum {
  template <typename T>
  static T finish(T sum, int ranks) {
    return sum / T(ranks);
  }
};

struct Product : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a * b;
  }
  static uint16_t apply(uint16_t a, uint16_t b) { return uint16_t(uint32_t(a) * b); }  // int would overflow
};

struct Min : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

struct Max : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct And : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a & b;
  }
};

struct Or : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a | b;
  }
};

struct Xor : NoFinish {
  template <typename T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};

// A target is one of the sources or does not overlap them, so iterations are independent.
template <typename Format, typename Op, int kCopies>
void reduce_two(const void* const* sources, void* const* targets, int64_t n) {
  using Stored = typename Format::Stored;
  const Stored* a = static_cast<const Stored*>(sources[0]);
  const Stored* b = static_cast<const Stored*>(sources[1]);
  Stored* first = static_cast<Stored*>(targets[0]);
  Stored* last = static_cast<Stored*>(targets[kCopies - 1]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const auto result = Op::apply(Format::load(a[i]), Format::load(b[i]));
    const Stored rounded = Format::round(Op::finish(result, 2));
    first[i] = rounded;
    if constexpr (kCopies == 2) last[i] = rounded;
  }
}

// Not inlined: if GCC sees that `sum` does not alias, it fuses the ranks' loops and does not vectorize them.
template <typename Format, typename Op>
[[gnu::noinline]] void fold(typename Format::Accumulator* sum, const void* const* sources, int ranks,
                            int64_t begin, int64_t count) {
  using Stored = typename Format::Stored;
  const auto source = [&](int rank) { return static_cast<const Stored*>(sources[rank]) + begin; };
  const Stored *first = source(0), *second = source(ranks > 1);
  if (ranks == 1) {
    for (int64_t i = 0; i < count; ++i) sum[i] = Format::load(first[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::apply(Format::load(first[i]), Format::load(second[i]));
  }
  for (int rank = 2; rank < ranks; ++rank) {
    const Stored* next = source(rank);
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::apply(sum[i], Format::load(next[i]));
  }
}

template <typename Format, typename Op>
void reduce(const void* const* sources, int ranks, void* const* targets, int copies, int64_t n) {
  using Stored = typename Format::Stored;
  if (ranks == 2 && copies == 1) return reduce_two<Format, Op, 1>(sources, targets, n);
  if (ranks == 2 && copies == 2) return reduce_two<Format, Op, 2>(sources, targets, n);
  alignas(64) typename Format::Accumulator sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = n - begin < kBlock ? n - begin : kBlock;
    fold<Format, Op>(sum, sources, ranks, begin, count);
    Stored* rounded = static_cast<Stored*>(targets[0]) + begin;
    for (int64_t i = 0; i < count; ++i) rounded[i] = Format::round(Op::finish(sum[i], ranks));
    for (int copy = 1; copy < copies; ++copy) {
      __builtin_memcpy(static_cast<Stored*>(targets[copy]) + begin, rounded,
                       uint64_t(count) * sizeof(Stored));
    }
  }
}

using Row = ReduceKernel[kElements];

template <typename Op>
constexpr void set_floats(Row& row) {
  row[int(Element::f64)] = reduce<Native<double>, Op>;
  row[int(Element::f32)] = reduce<Native<float>, Op>;
  row[int(Element::bf16)] = reduce<SixteenBit<base::Bf16>, Op>;
  row[int(Element::f16)] = reduce<SixteenBit<base::Fp16>, Op>;
}

// For operations independent of the sign. Unsigned, because integers wrap.
template <typename Op>
constexpr void set_integers(Row& row) {
  row[int(Element::i64)] = reduce<Native<uint64_t>, Op>;
  row[int(Element::i32)] = reduce<Native<uint32_t>, Op>;
  row[int(Element::i16)] = reduce<Native<uint16_t>, Op>;
  row[int(Element::i8)] = row[int(Element::u8)] = reduce<Native<uint8_t>, Op>;
}

template <typename Op>
constexpr void set_ordered_integers(Row& row) {
  row[int(Element::i64)] = reduce<Native<int64_t>, Op>;
  row[int(Element::i32)] = reduce<Native<int32_t>, Op>;
  row[int(Element::i16)] = reduce<Native<int16_t>, Op>;
  row[int(Element::i8)] = reduce<Native<int8_t>, Op>;
  row[int(Element::u8)] = reduce<Native<uint8_t>, Op>;
}

template <typename Logical, typename... Rows>
constexpr void set_bool(Rows&... rows) {
  ((rows[int(Element::boolean)] = reduce<Bool, Logical>), ...);
}

constexpr ReduceKernels all_kernels() {
  ReduceKernels kernels{};
  const auto row = [&](Reduce reduce) -> Row& { return kernels.table[int(reduce)]; };
  set_floats<Sum>(row(Reduce::sum));
  set_floats<Average>(row(Reduce::average));
  set_floats<Product>(row(Reduce::product));
  set_floats<Min>(row(Reduce::min));
  set_floats<Max>(row(Reduce::max));
  set_integers<Sum>(row(Reduce::sum));
  set_integers<Product>(row(Reduce::product));
  set_integers<And>(row(Reduce::bit_and));
  set_integers<Or>(row(Reduce::bit_or));
  set_integers<Xor>(row(Reduce::bit_xor));
  set_ordered_integers<Min>(row(Reduce::min));
  set_ordered_integers<Max>(row(Reduce::max));
  set_bool<Or>(row(Reduce::sum), row(Reduce::max), row(Reduce::bit_or));
  set_bool<And>(row(Reduce::product), row(Reduce::min), row(Reduce::bit_and));
  set_bool<Xor>(row(Reduce::bit_xor));
  return kernels;
}

}  // namespace

constinit const ReduceKernels reduce_kernels = all_kernels();

}  // namespace shardwise::comm::SHARDWISE_ISA
