#include "shardwise/parallel/data_parallel.h"

#include <c10/util/Exception.h>

namespace shardwise::parallel {
namespace {

ParamSpecs all_of(const ParameterParts& parts) {
  ParamSpecs all;
  for (const ParamSpecs& specs : parts.parts) all.insert(all.end(), specs.begin(), specs.end());
  return all;
}

}  // namespace

DataParallel::DataParallel(const ParamSpecs& specs, const comm::Group& group, Replication replication,
                           const std::optional<HostGroups>& hosts)
    : group_(group),
      replication_(group.size() == 1 ? Replication::whole : replication),
      hosts_(hosts),
      owned_({specs}, group) {
  if (group.size() == 1) {
    for (const ParamSpec& spec : specs) zero_grad_(*spec.parameter);
    return;
  }
  TORCH_CHECK_VALUE(replication != Replication::sharded,
                    "DataParallel: sharded weights need the parameters in parts; got one list [SW0882]");
  gradients_.emplace(specs, group);
  split_weights_(specs);
}

DataParallel::DataParallel(const ParameterParts& parts, const comm::Group& group, Replication replication,
                           const std::optional<HostGroups>& hosts)
    : group_(group),
      replication_(group.size() == 1 ? Replication::whole : replication),
      hosts_(hosts),
      owned_(parts.parts, group) {
  const ParamSpecs specs = all_of(parts);
  if (group.size() == 1) {
    for (const ParamSpec& spec : specs) zero_grad_(*spec.parameter);
    return;
  }
  TORCH_CHECK_VALUE(
      replication != Replication::whole,
      "DataParallel: sharded gradients need replicas that split optimizer states; got whole replicas"
      " [SW0871]");
  sharded_gradients_.emplace(parts, owned_, group);
  if (replication_ != Replication::sharded) {
    split_weights_(specs);
    return;
  }
  sharded_weights_.emplace(parts, owned_, group);
  updated_ = owned_;
}

void DataParallel::split_weights_(const ParamSpecs& specs) {
  if (replication_ == Replication::whole) return;
  weights_.emplace(specs, shares_weights() ? sharers() : group_, shares_weights());
  updated_ = owned_;
}

bool DataParallel::sets_weights() const {
  return !shares_weights() || sharers().rank() == 0;
}

void DataParallel::keep_set_(Parameter& parameter) const {
  if (sharded_weights_) sharded_weights_->keep_owned_(parameter);
}

void DataParallel::begin_part_(size_t part) {
  if (sharded_weights_) sharded_weights_->read_for_forward_(part);
}

void DataParallel::finish_part_(size_t part) {
  if (sharded_gradients_) sharded_gradients_->sum_part_(part);
  if (sharded_weights_ && part > 0) sharded_weights_->read_for_backward_(part - 1);
}

void DataParallel::forget_parts_() {
  if (sharded_weights_) sharded_weights_->forget_();
}

void DataParallel::wait_until_set() const {
  if (shares_weights()) sharers().barrier();
}

void DataParallel::sum_gradients_() {
  if (!gradients_) return;
  if (replication_ == Replication::whole) return gradients_->sum_();
  gradients_->sum_owned_(owned_);
}

void DataParallel::finish_update_() {
  if (replication_ == Replication::whole) return;
  if (gradients_) gradients_->zero_others_(owned_);
  if (sharded_weights_) return sharded_weights_->forget_();
  if (!shares_weights()) return weights_->all_gather_(owned_);
  if (hosts_) weights_->broadcast_(owned_, *hosts_);
  sharers().barrier();
}

}  // namespace shardwise::parallel
