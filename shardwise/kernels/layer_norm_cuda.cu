#include "shardwise/kernels/layer_norm_cuda.h"

#include "shardwise/kernels/norm_backward_rows_cuda.h"
#include "shardwise/kernels/norm_rows_cuda.h"

namespace shardwise::kernels::cuda {

template <class T>
void layer_norm(const LayerNorm<T>& n, cudaStream_t stream) {
  launch_norm<Layer>(NormRows<T>{n.y, n.mean, n.rstd, n.weight, n.bias, n.h, n.eps}, n.x, n.rows, stream);
}
template void layer_norm(const LayerNorm<float>&, cudaStream_t);
template void layer_norm(const LayerNorm<__nv_bfloat16>&, cudaStream_t);
template void layer_norm(const LayerNorm<__half>&, cudaStream_t);

template <class T>
void layer_norm_backward(const LayerNormBackward<T>& n, cudaStream_t stream) {
  float* const of_bias = n.bias_grad ? n.partial + int64_t{n.blocks} * n.h : nullptr;
  launch_norm_backward<Layer>(
      NormBackwardRows<T>{n.dx, n.weight_grad ? n.partial : nullptr, of_bias, n.dy, n.x, n.weight,
                          n.residual_grad, n.mean, n.rstd, n.rows, n.h},
      n.blocks, n.weight_grad, n.bias_grad, stream);
}
template void layer_norm_backward(const LayerNormBackward<float>&, cudaStream_t);
template void layer_norm_backward(const LayerNormBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
