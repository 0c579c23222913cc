# The headers that `cmake --install` installs, below shardwise/: the interface for programs that link the library. All other
# headers are internal and change without notice. A public header includes only public headers, and no header of a library but
# libtorch's light ones (tools/check_public_headers); every declaration in it has a doc comment (make docs).

set(SHARDWISE_PUBLIC_HEADERS
  base/error.h
  base/parameter.h
  base/part_buffers.h
  base/pipeline.h
  base/recompute.h
  base/secret.h
  base/setting.h
  base/row_runs.h
  base/split.h

  comm/counters.h
  comm/group.h
  comm/mesh.h
  comm/reduction.h
  comm/shm/one_shot.h
  comm/shm/shm.h
  comm/symmetric_heap.h
  comm/work.h

  launch/environment.h
  launch/launch.h
  launch/process_group.h

  kernels/gelu.h
  kernels/panel_shape.h
  kernels/panels.h
  kernels/random.h
  kernels/rotary.h
  kernels/stored_heads.h
  kernels/swiglu.h

  quant/format.h
  quant/matrix.h
  quant/panels.h

  parallel/async_conjugate.h
  parallel/collectives.h
  parallel/column_product.h
  parallel/data_parallel.h
  parallel/deferred_reduction.h
  parallel/flat_gradients.h
  parallel/flat_weights.h
  parallel/gradient_sync.h
  parallel/host_groups.h
  parallel/owned_rows.h
  parallel/parameter_parts.h
  parallel/parameter.h
  parallel/placement.h
  parallel/recompute.h
  parallel/row_product.h
  parallel/sharded_gradients.h
  parallel/sharded_weights.h
  parallel/step.h

  nn/attention.h
  nn/block.h
  nn/cache.h
  nn/dropout.h
  nn/embedding.h
  nn/linear.h
  nn/linear_cross_entropy.h
  nn/loss.h
  nn/mlp.h
  nn/module.h
  nn/norm.h
  nn/observer.h
  nn/one_of.h
  nn/positions.h
  nn/rotary.h
  nn/split_batch.h
  nn/step.h

  config/config.h
  config/layout.h
  config/parameters.h
  config/quantization.h

  model/decoder.h
  model/decoder_weights.h

  checkpoint/checkpoint.h

  plan/block_collectives.h
  plan/block_kind.h
  plan/collective_time.h
  plan/communication.h
  plan/context_parallel.h
  plan/decision_matrix.h
  plan/frozen_parameters.h
  plan/generation.h
  plan/host_search.h
  plan/inference_plan.h
  plan/inference_rates.h
  plan/inference_search.h
  plan/largest.h
  plan/learn.h
  plan/machine.h
  plan/machine_file.h
  plan/memory.h
  plan/micro_batch_costs.h
  plan/one_block_stages.h
  plan/operation_time.h
  plan/operations.h
  plan/parameter_sums.h
  plan/parameters.h
  plan/part.h
  plan/peak.h
  plan/published.h
  plan/rate.h
  plan/required_gradients.h
  plan/saved_tensor.h
  plan/search.h
  plan/sharded_tensors.h
  plan/snapshots.h
  plan/training_plan.h
  plan/workload.h

  text/tokenizer.h

  train/optimizer.h
  train/options.h
  train/saved_state.h
  train/schedule.h

  infer/evaluate.h
  infer/generate.h
  infer/request.h
  infer/sampler.h
  infer/token_rules.h)
