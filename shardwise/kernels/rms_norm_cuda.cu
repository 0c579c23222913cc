#include "shardwise/kernels/rms_norm_cuda.h"

#include "shardwise/kernels/norm_backward_rows_cuda.h"
#include "shardwise/kernels/norm_rows_cuda.h"

namespace shardwise::kernels::cuda {

template <class T>
void rms_norm(const RmsNorm<T>& n, cudaStream_t stream) {
  launch_norm<Rms>(NormRows<T>{n.y, /*mean=*/nullptr, n.rstd, n.weight, /*bias=*/nullptr, n.h, n.eps}, n.x,
                   n.rows, stream);
}
template void rms_norm(const RmsNorm<float>&, cudaStream_t);
template void rms_norm(const RmsNorm<__nv_bfloat16>&, cudaStream_t);
template void rms_norm(const RmsNorm<__half>&, cudaStream_t);

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& n, cudaStream_t stream) {
  launch_norm_backward<Rms>(
      NormBackwardRows<T>{n.dx, n.weight_grad ? n.partial : nullptr, /*bias_partial=*/nullptr, n.dy, n.x,
                          n.weight, n.residual_grad, /*mean=*/nullptr, n.rstd, n.rows, n.h},
      n.blocks, n.weight_grad, /*bias_grad=*/nullptr, stream);
}
template void rms_norm_backward(const RmsNormBackward<float>&, cudaStream_t);
template void rms_norm_backward(const RmsNormBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
