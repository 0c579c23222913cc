#include "shardwise/comm/c10d_reduction.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::comm {
namespace {

using c10d::ReduceOp;

struct Pair {
  Reduce ours;
  ReduceOp::RedOpType theirs;
};
constexpr Pair kPairs[] = {{Reduce::sum, ReduceOp::SUM},         {Reduce::average, ReduceOp::AVG},
                           {Reduce::product, ReduceOp::PRODUCT}, {Reduce::min, ReduceOp::MIN},
                           {Reduce::max, ReduceOp::MAX},         {Reduce::bit_and, ReduceOp::BAND},
                           {Reduce::bit_or, ReduceOp::BOR},      {Reduce::bit_xor, ReduceOp::BXOR}};

}  // namespace

Reduce from_c10d(const ReduceOp& op, const std::string& backend, const char* call) {
  const Pair* const found = std::ranges::find(kPairs, op.op_, &Pair::theirs);
  TORCH_CHECK_VALUE(found != std::end(kPairs), call, ": backend ", backend,
                    " supports SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR; got ",
                    op.op_ == ReduceOp::PREMUL_SUM ? "PREMUL_SUM" : "UNUSED");
  return found->ours;
}

ReduceOp to_c10d(Reduce reduce) {
  return std::ranges::find(kPairs, reduce, &Pair::ours)->theirs;
}

}  // namespace shardwise::comm
