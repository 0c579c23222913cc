// Loads a packed weight: from packed tensors in the format of GPTQ or AWQ, or from unquantized weights,
// which it quantizes or packs in bf16.
//
//   GPTQ   qweight [in/p, out] int32: p = 32/bits values of one output in a word, the first in the lowest
//          bits; qzeros [groups, out/p]: the zero points of p outputs in a word, minus one (gptq_v2: without
//          the minus one); scales [groups, out]; g_idx [in]: the group of each input feature
//   AWQ    qweight [in, out/8] and qzeros [groups, out/8]: eight outputs in a word, 0 2 4 6 1 3 5 7 from the
//          lowest bits; scales [groups, out]
//
// Sources: AutoGPTQ, nn_modules/qlinear/qlinear_cuda_old.py, pack; AutoAWQ, modules/linear/gemm.py,
// from_linear.
#pragma once
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/comm/group.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::checkpoint {

/// Fills weight.panels with this rank's shard and reads only the bytes of that shard. Collective if the
/// files are unquantized and ranks share rows: they all_reduce the maximum magnitude of each group.
/// Cost: 32 MB of memory in addition to the weight.
/// Errors: c10::ValueError naming the tensor and the rule; adds invalid values to `errors`.
void load_quantized(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& config,
                    const comm::Group& group, ValidationErrors& errors);

/// Fills weight.panels, of bf16, with this rank's shard of the unquantized weight in the files of `stored`.
/// Cost: 1 MB of memory in addition to the weight. Adds NaN or infinity to `errors`.
void pack_on_load(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& stored,
                  int rank, ValidationErrors& errors);

}  // namespace shardwise::checkpoint
