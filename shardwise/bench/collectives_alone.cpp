#include "shardwise/bench/collectives_alone.h"

namespace shardwise::bench {

CollectivesAlone::CollectivesAlone(const PartShape& shape, const plan::Collectives& collectives,
                                   const comm::Group& group)
    : collectives_(collectives),
      group_(group),
      sequence_(base::Split::even("sequence", shape.seq_len, group.size())) {
  const auto hidden = [&](int64_t rows) {
    return group.empty({rows, shape.batch_size, shape.config.hidden_size}, shape.dtype).zero_();
  };
  full_ = hidden(shape.seq_len);
  shard_ = hidden(sequence_.range(group.rank()).size());
}

void CollectivesAlone::run() {
  for (int64_t i = 0; i < collectives_.all_gather.calls; ++i) group_.all_gather(shard_, sequence_);
  for (int64_t i = 0; i < collectives_.all_reduce.calls; ++i) group_.all_reduce_(full_);
  for (int64_t i = 0; i < collectives_.reduce_scatter.calls; ++i)
    group_.reduce_scatter_out(shard_, full_, sequence_);
}

}  // namespace shardwise::bench
