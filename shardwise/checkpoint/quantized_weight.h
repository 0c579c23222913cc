// Filling a quantized weight from files: packed ones, as GPTQ or AWQ lay them out, or ordinary ones, which
// are quantized on the way.
//
//   GPTQ   qweight [in/p, out] int32, p = 32/bits codes of one output in a word, the first in the lowest
//   bits;
//          qzeros [groups, out/p], those of p outputs in a word, one less than they are (gptq_v2: as they
//          are); scales [groups, out]; g_idx [in], the group of each input feature
//   AWQ    qweight [in, out/8] and qzeros [groups, out/8]: eight outputs in a word, 0 2 4 6 1 3 5 7 from the
//          lowest bits; scales [groups, out]
//
// Sources: AutoGPTQ, nn_modules/qlinear/qlinear_cuda_old.py, pack; AutoAWQ, modules/linear/gemm.py,
// from_linear.
#pragma once
#include "shardwise/checkpoint/agreement.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/comm/group.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::checkpoint {

/// Fills weight.quantized with this rank's part, reading no other byte. Collective where files are ordinary
/// and ranks share rows: the largest value of each group is that of all. Cost: 32 MB beside the weight.
/// Errors: c10::ValueError naming the tensor and the rule; numbers that cannot be are `mistakes`.
void load_quantized(const WeightFiles& files, const parallel::Parameter& weight, const model::Config& config,
                    const comm::Group& group, ValidationErrors& mistakes);

/// Errors: c10::ValueError beginning with `name` for a magnitude that is no number, or too large for a scale.
void check_magnitudes(const at::Tensor& maxima, const quant::Format& format, const std::string& name);

}  // namespace shardwise::checkpoint
