// Weights of which each data-parallel rank keeps those that it owns, and gathers the others part by part
// before it computes with them (ZeRO stage 3, Rajbhandari et al. 2020).
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "shardwise/base/part_buffers.h"
#include "shardwise/parallel/owned_rows.h"
#include "shardwise/parallel/parameter_parts.h"

namespace shardwise::parallel {

/// The weights of a rank's parameters, part by part. The value of a parameter is a part of a buffer, which
/// parts use in turn: it can be read from the read of its part until that of another part of the same
/// buffer. owned_value has the rows that the rank owns.
class ShardedWeights {
 public:
  /// Allocates value and owned_value of every parameter, frozen ones too, without values: two buffers of the
  /// elements of the largest parts, one more for the first part if it is tied, and the rows that this rank
  /// owns; in the symmetric heap of the data-parallel `group` if it has one. The ranks of `group` must hold
  /// the same shards. Errors: c10::ValueError if parameters have different dtypes.
  ShardedWeights(const ParameterParts& parts, const OwnedRows& owned, const comm::Group& group);

  /// Copies the rows of a parameter that this rank owns from its value, which has just been set, to
  /// owned_value.
  void keep_owned_(Parameter& parameter) const;

  /// Makes the values of a part readable before the forward computes with it, and starts to gather those of
  /// the next part. Gathers nothing that is in its buffer already. Collective: every rank reads the same
  /// parts in the same order. Cost: one all_gather of the trained and one of the frozen elements of each part
  /// that is gathered. It is in flight until the part is read only with backends that make progress by
  /// themselves (comm::Group::is_synchronous).
  void read_for_forward_(size_t part);
  /// The same before a part's backward, in which the part before is the next one. Does nothing for a part
  /// whose weights no backward needs: one before the first trained part, and the first, which has the
  /// embeddings.
  void read_for_backward_(size_t part);
  /// Makes the next reads gather again, because owners have changed their rows.
  void forget_();

 private:
  /// The trained or the frozen weights of a part, without gaps.
  struct Piece {
    at::Tensor buffer;  // [elements] in the buffer of the part
    at::Tensor owned;   // [elements of the owned rows]
    base::Split owners;
  };
  using Pieces = std::vector<Piece>;
  using InFlight = std::vector<std::unique_ptr<comm::Work>>;
  void read_(size_t part, std::optional<size_t> next);
  void start_(size_t part);

  comm::Group group_;
  size_t last_of_backward_;  // the part with which every backward ends
  base::PartBuffers buffers_;
  std::vector<Pieces> parts_;
  std::array<InFlight, base::PartBuffers::kCount> in_flight_;  // by buffer
};

}  // namespace shardwise::parallel
