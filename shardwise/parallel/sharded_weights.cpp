#include "shardwise/parallel/sharded_weights.h"

#include <algorithm>

#include "shardwise/base/profile.h"
#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {
namespace {

/// Where the trained or the frozen parameters of a part are.
struct Place {
  std::vector<ParameterPtr> parameters;
  base::Split owners;
  int64_t begin;  // in the buffer of the part
  int64_t end() const { return begin + owners.size(); }
};

int64_t trained_elements(const OwnedRows& owned) {
  int64_t elements = 0;
  for (const base::Split& owners : owned.elements()) elements += owners.size();
  return elements;
}

/// Returns the places of each part: the trained parameters, then the frozen ones.
std::vector<std::vector<Place>> places_of(const std::vector<ParamSpecs>& parts, const OwnedRows& owned) {
  std::vector<std::vector<Place>> places;
  int64_t trained = 0, frozen = trained_elements(owned);  // in one tensor of all
  for (size_t part = 0; part < parts.size(); ++part) {
    const base::Split &trains = owned.elements()[part], &keeps = owned.frozen_elements()[part];
    Place first{trained_parameters(parts[part]), trains, aligned_like(trained, 0)};
    Place second{frozen_parameters(parts[part]), keeps, aligned_like(frozen, first.end())};
    trained += trains.size();
    frozen += keeps.size();
    places.push_back({std::move(first), std::move(second)});
  }
  return places;
}

}  // namespace

ShardedWeights::ShardedWeights(const ParameterParts& parts, const OwnedRows& owned, const comm::Group& group)
    : group_(group),
      last_of_backward_(std::max(size_t{1}, parts.first_trained())),
      buffers_(parts.is_first_tied) {
  const at::ScalarType dtype = value_dtype(parts.parts);
  const std::vector<std::vector<Place>> places = places_of(parts.parts, owned);
  std::array<int64_t, base::PartBuffers::kCount> elements{};
  for (size_t part = 0; part < places.size(); ++part) {
    int64_t& largest = elements[buffers_.buffer_of(part)];
    largest = std::max(largest, places[part].back().end());
  }
  std::array<at::Tensor, base::PartBuffers::kCount> buffers;
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = group.empty({elements[i]}, dtype);
  for (size_t part = 0; part < places.size(); ++part) {
    Pieces& pieces = parts_.emplace_back();
    for (const auto& [parameters, owners, begin] : places[part]) {
      const at::Tensor buffer = buffers[buffers_.buffer_of(part)].narrow(/*dim=*/0, begin, owners.size());
      const at::Tensor kept = group.empty({owners.range(group.rank()).size()}, dtype);
      assign_values(buffer, parameters);
      assign_owned_rows(kept, parameters, owned, &Parameter::owned_value);
      if (owners.size() > 0) pieces.push_back({buffer, kept, owners});
    }
  }
}

void ShardedWeights::keep_owned_(Parameter& parameter) const {
  const at::Tensor& owned = parameter.owned_value;
  owned.copy_(parameter.value.detach().narrow(/*dim=*/0, parameter.owned_begin, owned.size(0)));
}

void ShardedWeights::read_for_forward_(size_t part) {
  read_(part, part + 1 < parts_.size() ? std::optional(part + 1) : std::nullopt);
}

void ShardedWeights::read_for_backward_(size_t part) {
  if (part >= last_of_backward_)
    read_(part, part > last_of_backward_ ? std::optional(part - 1) : std::nullopt);
}

void ShardedWeights::read_(size_t part, std::optional<size_t> next) {
  base::enter_part("");
  if (buffers_.assign(part)) start_(part);
  InFlight& works = in_flight_[buffers_.buffer_of(part)];
  for (const std::unique_ptr<comm::Work>& work : works) work->wait();
  works.clear();
  if (next && buffers_.assign(*next)) start_(*next);
}

void ShardedWeights::forget_() {
  buffers_.clear();
}

void ShardedWeights::start_(size_t part) {
  for (const auto& [buffer, owned, owners] : parts_[part])
    in_flight_[buffers_.buffer_of(part)].push_back(group_.all_gather_out_async(buffer, owned, owners));
}

}  // namespace shardwise::parallel
