#include "shardwise/comm/mpi/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/hash.h"
#include "shardwise/comm/mpi/transfers.h"
#include "shardwise/comm/rendezvous.h"

namespace shardwise::comm::mpi {
namespace {

uint64_t hash_of(const std::vector<int>& ranks) {
  uint64_t hash = base::kHashBegin;
  for (const int rank : ranks) hash = base::mix(hash, uint64_t(rank));
  return hash;
}

PeerInfo peer_info_of(const ConnectOptions& options, int rank) {
  PeerInfo info = local_peer_info(options.name, rank, int(options.ranks.size()));
  info.secret = base::Secret::random();
  info.job_rank = options.rank;
  info.node = options.node;
  info.members = hash_of(options.ranks);
  return info;
}

// The tag distinguishes groups that ranks create at the same time; if two names have one tag, their PeerInfo
// differs.
int tag_of(const std::string& name, int largest) {
  return 1 + static_cast<int>(base::hash_of(name) % static_cast<size_t>(std::min(largest, 1 << 20) - 1));
}

/// The exchange of one group's PeerInfo.
class PeerInfoExchange {
 public:
  PeerInfoExchange(Process& process, const ConnectOptions& options, int rank)
      : process_(process),
        options_(options),
        deadline_(rank, options.timeout),
        rank_(rank),
        infos_(std::make_shared<std::vector<PeerInfo>>()) {
    infos_->resize(options.ranks.size());
    (*infos_)[size_t(rank)] = peer_info_of(options, rank);
  }

  std::vector<PeerInfo> run() {
    Transfers transfers(process_, kUnsplit);
    transfers.retain(infos_);
    const int tag = tag_of(options_.name, process_.largest_tag());
    for (size_t peer = 0; peer < infos_->size(); ++peer) {
      if (int(peer) == rank_) continue;
      const Address address{process_.world(), options_.ranks[peer], tag};
      peers_.push_back(int(peer));
      transfers.receive(&(*infos_)[peer], sizeof(PeerInfo), address);
    }
    for (const int peer : peers_) {
      transfers.send(&(*infos_)[size_t(rank_)], sizeof(PeerInfo),
                     {process_.world(), options_.ranks[size_t(peer)], tag});
    }
    wait(transfers);
    return *infos_;
  }

 private:
  void wait(Transfers& transfers) {
    Backoff backoff({}, kMaxSleep);
    for (size_t next = 0; next < transfers.count(); ++next) {
      const int peer = peers_[next % peers_.size()];  // first the receives, then the sends
      for (; !transfers.advance(next + 1); backoff.pause()) {
        if (deadline_.is_over())
          deadline_.fail(peer, fmt::format("timed out waiting for rank {} to join group {} [SW0314]", peer,
                                           options_.name));
      }
      if (transfers.error() != MPI_SUCCESS)
        deadline_.fail(peer, "MPI: " + error_text(transfers.error()) + " [SW0321]");
      const std::string why = disagreement((*infos_)[size_t(rank_)], (*infos_)[size_t(peer)]);
      if (!why.empty()) deadline_.fail(peer, why);
    }
  }

  Process& process_;
  const ConnectOptions& options_;
  ConnectDeadline deadline_;
  int rank_;
  std::shared_ptr<std::vector<PeerInfo>> infos_;
  std::vector<int> peers_;
};

struct Communicators {
  MPI_Comm data = MPI_COMM_NULL, control = MPI_COMM_NULL;
  int code = MPI_SUCCESS;  // the error, if MPI cannot create them
};

// All ranks have exchanged their infos, so this blocks only on a rank that was stopped meanwhile.
void create(Communicators& created, MPI_Comm world, const std::vector<int>& ranks, int tag) {
  MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm_group(world, &all);
  MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members);
  created.code = MPI_Comm_create_group(world, members, tag, &created.data);
  if (created.code == MPI_SUCCESS) {
    MPI_Comm_set_errhandler(created.data, MPI_ERRORS_RETURN);
    created.code = MPI_Comm_dup(created.data, &created.control);
  }
  MPI_Group_free(&members);
  MPI_Group_free(&all);
}

}  // namespace

Membership exchange_peer_info(Process& process, const ConnectOptions& options) {
  const auto found = std::find(options.ranks.begin(), options.ranks.end(), options.rank);
  TORCH_INTERNAL_ASSERT(found != options.ranks.end());
  Membership membership;
  membership.process = &process;
  membership.rank = static_cast<int>(found - options.ranks.begin());
  const std::vector<PeerInfo> infos = PeerInfoExchange(process, options, membership.rank).run();
  for (const PeerInfo& info : infos) {
    membership.nodes.push_back(info.node);
    membership.secrets.push_back(info.secret);
  }
  const MachineShare share = machine_share(infos, infos[size_t(membership.rank)].machine);
  membership.policy = Backoff::Policy::choose(share.ranks, share.cores);
  return membership;
}

void make_communicators(Membership& membership, const ConnectOptions& options) {
  Process& process = *membership.process;
  const ConnectDeadline deadline(membership.rank, options.timeout);
  const auto created = std::make_shared<Communicators>();
  const int tag = tag_of(options.name, process.largest_tag());
  const bool has_returned = process.run(
      [created, tag, world = process.world(), ranks = options.ranks] { create(*created, world, ranks, tag); },
      options.timeout);
  if (!has_returned)
    deadline.fail(
        -1, fmt::format("a rank of group {} stopped while the group was created [SW0317]", options.name));
  if (created->code != MPI_SUCCESS)
    deadline.fail(-1, fmt::format("MPI cannot create a communicator for group {}: {} [SW0318]", options.name,
                                  error_text(created->code)));
  membership.data = created->data;
  membership.control = created->control;
}

}  // namespace shardwise::comm::mpi
