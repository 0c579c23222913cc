#include "shardwise/bench/probes.h"

#include <ATen/Parallel.h>

#include <atomic>

#include "shardwise/bench/probe_amx.h"
#include "shardwise/bench/probe_bf16.h"
#include "shardwise/bench/probe_isa.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::bench {
namespace {

constexpr int64_t kIterations = 20000;  // about 100 µs
constexpr int64_t kLineBytes = 64;
/// Makes a thread's share of one unit enough work (kernels::for_ranges).
constexpr int64_t kLarge = 1 << 20;

}  // namespace

uint64_t read_once(const parallel::Parameter& weight) {
  const at::Tensor& tensor = weight.panels ? weight.panels->data : weight.value;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const auto lines = static_cast<int64_t>(tensor.nbytes()) / kLineBytes;
  const auto loops = probe_loops<float>();
  std::atomic<uint64_t> sum = 0;
  kernels::for_ranges(lines, kLineBytes, [&](int64_t begin, int64_t end) {
    const auto* words = reinterpret_cast<const uint64_t*>(bytes + begin * kLineBytes);
    sum += loops.read(words, (end - begin) * kLineBytes / int64_t{sizeof(uint64_t)});
  });
  return sum;
}

ArithmeticProbe::ArithmeticProbe(at::ScalarType dtype) {
  if (dtype == at::kBFloat16 && base::best_isa() >= base::Isa::amx) {
    name_ = "tdpbf16ps";
    loop_ = amx::multiply_add_tiles;
    operations_per_iteration_ = amx::kTileOperations;
    return;
  }
  if (dtype == at::kBFloat16 && base::best_isa() >= base::Isa::avx512_bf16) {
    name_ = "vdpbf16ps";
    loop_ = avx512_bf16::multiply_add_bf16;
    operations_per_iteration_ = avx512_bf16::kBf16Operations;
    return;
  }
  const auto loops = probe_loops<float>();
  name_ = std::string("fp32 multiply-add, ") + base::name_of(base::loops_isa());
  loop_ = loops.multiply_add;
  operations_per_iteration_ = loops.operations;
}

int64_t ArithmeticProbe::operations() const {
  return at::get_num_threads() * kIterations * operations_per_iteration_;
}

void ArithmeticProbe::run() const {
  std::atomic<bool> is_positive = false;
  kernels::for_ranges(at::get_num_threads(), kLarge, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) is_positive = loop_(kIterations) > 0;
  });
  TORCH_INTERNAL_ASSERT(is_positive);
}

}  // namespace shardwise::bench
