#include "shardwise/parallel/data_parallel.h"

namespace shardwise::parallel {

DataParallel::DataParallel(const ParamSpecs& specs, const comm::Group& group, Replication replication)
    : group_(group),
      replication_(group.size() == 1 ? Replication::whole : replication),
      owned_(specs, group) {
  if (group.size() == 1) {
    for (const ParamSpec& spec : specs) zero_grad_(*spec.parameter);
    return;
  }
  gradients_.emplace(specs, group);
  if (replication_ == Replication::whole) return;
  weights_.emplace(specs, group, replication_ == Replication::shared);
  updated_ = owned_;
}

void DataParallel::publish_weights_() {
  if (replication_ == Replication::shared) return group_.barrier();
  if (weights_) weights_->all_gather_(owned_);
}

void DataParallel::sum_gradients_() {
  if (!gradients_) return;
  if (replication_ == Replication::whole) return gradients_->sum_();
  gradients_->sum_owned_(owned_);
}

void DataParallel::finish_update_() {
  if (replication_ == Replication::whole) return;
  gradients_->zero_others_(owned_);
  publish_weights_();
}

}  // namespace shardwise::parallel
