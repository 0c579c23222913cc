#include "shardwise/kernels/panel_store_isa.h"

#include "shardwise/kernels/loops.h"
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void store(T* __restrict y, int64_t stride, const float* __restrict products, int64_t rows, int64_t outputs) {
  for (int64_t row = 0; row < rows; ++row, y += stride, products += kPanelOutputs) {
    for (int64_t o = 0; o < outputs; ++o) y[o] = narrow<T>(static_cast<Accumulator<T>>(products[o]));
  }
}

}  // namespace

template <class T>
PanelStoreLoops<T> panel_store_loops() {
  return {store<T>};
}
SHARDWISE_INSTANTIATE(PanelStoreLoops, panel_store_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
