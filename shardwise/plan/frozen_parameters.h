// The parameters that a run does not train, and what follows from them for every layer.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shardwise/plan/required_gradients.h"

namespace shardwise::plan {

/// The frozen parameters of one model. Unchangeable: copies share what was computed once, because a search
/// asks for it in every plan.
class FrozenParameters {
 public:
  /// None: all parameters are trained.
  FrozenParameters() = default;
  /// Errors: c10::ValueError if `config` has no parameter of one of these names (as in config/parameters.h),
  /// or if there are names and the model can only be planned.
  FrozenParameters(const config::Config& config, const std::set<std::string>& names);

  /// Returns whether all parameters are trained.
  bool empty() const { return !of_; }
  /// Returns whether this parameter is frozen.
  bool contains(const std::string& name) const { return of_ && of_->names.contains(name); }
  /// Returns whether no parameter is trained.
  bool are_all() const { return of_ && of_->names.size() == of_->parameters; }
  /// Errors: c10::ValueError if these are parameters of another model than `config`, or all that it has.
  void validate(const config::Config& config) const;

  /// Returns the frozen parameters of a block, by their names within it. There must be frozen ones.
  const std::set<std::string>& of_block(int64_t layer) const { return of_->by_block[layer]; }
  /// Returns the first block whose frozen parameters have the same names within it; -1 if none is frozen in
  /// the model.
  int64_t first_like(int64_t layer) const { return of_ ? of_->first_like[layer] : -1; }
  /// Returns which gradients backward computes. There must be frozen parameters.
  const RequiredByModel& required() const { return of_->required; }

 private:
  struct OfModel {
    config::Config config;
    std::set<std::string> names;
    size_t parameters;  // of the model
    std::vector<std::set<std::string>> by_block;
    std::vector<int64_t> first_like;
    RequiredByModel required;
  };
  std::shared_ptr<const OfModel> of_;  // null: none is frozen
};

/// Returns the beginning of the names of a block's parameters.
std::string prefix_of_block(int64_t layer);

}  // namespace shardwise::plan
