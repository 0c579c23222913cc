#include "shardwise/comm/mpi/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/base/hash.h"
#include "shardwise/comm/mpi/transfers.h"
#include "shardwise/comm/node.h"

namespace shardwise::comm::mpi {
namespace {

/// What a rank says of itself to the others of its group.
struct Hello {
  uint64_t host, machine;
  cpu_set_t processors;
  uint64_t ranks;  // hash of the group's
  char name[64];
};

uint64_t hash_of(const std::vector<int>& ranks) {
  uint64_t hash = base::kHashBegin;
  for (const int rank : ranks) hash = base::mix(hash, uint64_t(rank));
  return hash;
}

Hello own_hello(const Options& options) {
  Hello hello{};
  hello.host = options.host;
  hello.machine = own_machine();
  sched_getaffinity(0, sizeof hello.processors, &hello.processors);
  hello.ranks = hash_of(options.ranks);
  options.name.copy(hello.name, sizeof hello.name - 1);
  return hello;
}

// Groups that a rank makes at the same time as another rank makes others are told apart by their tags; where
// two names have one tag, by what the hellos say.
int tag_of(const std::string& name, int largest) {
  return 1 + static_cast<int>(base::hash_of(name) % static_cast<size_t>(std::min(largest, 1 << 20) - 1));
}

/// The hellos of one group on their way.
class Visit {
 public:
  Visit(Process& process, const Options& options, int rank)
      : process_(process), options_(options), rank_(rank), hellos_(std::make_shared<std::vector<Hello>>()) {
    hellos_->resize(options.ranks.size());
    (*hellos_)[size_t(rank)] = own_hello(options);
  }

  std::vector<Hello> run() {
    Transfers transfers(process_, kWhole);
    transfers.keep(hellos_);
    const int tag = tag_of(options_.name, process_.largest_tag());
    for (size_t peer = 0; peer < hellos_->size(); ++peer) {
      if (int(peer) == rank_) continue;
      const Address address{process_.world(), options_.ranks[peer], tag};
      peers_.push_back(int(peer));
      transfers.receive(&(*hellos_)[peer], sizeof(Hello), address);
    }
    for (const int peer : peers_) {
      transfers.send(&(*hellos_)[size_t(rank_)], sizeof(Hello),
                     {process_.world(), options_.ranks[size_t(peer)], tag});
    }
    await(transfers);
    return *hellos_;
  }

 private:
  void await(Transfers& transfers) {
    Backoff backoff({}, kLongestNap);
    for (size_t next = 0; next < transfers.count(); ++next) {
      const int peer = peers_[next % peers_.size()];  // first what is received, then what is sent
      for (; !transfers.advance(next + 1); backoff.pause()) {
        if (backoff.elapsed() >= options_.timeout)
          fail(peer, fmt::format("rank {} did not come to group {}", peer, options_.name), backoff);
      }
      if (transfers.error() != MPI_SUCCESS) fail(peer, "MPI: " + error_text(transfers.error()), backoff);
      compare(peer, backoff);
    }
  }

  void compare(int peer, const Backoff& backoff) {
    const Hello &own = (*hellos_)[size_t(rank_)], &theirs = (*hellos_)[size_t(peer)];
    if (own.ranks == theirs.ranks && std::string_view(own.name) == theirs.name) return;
    fail(peer,
         fmt::format("rank {} of the job makes group {}, rank {} group {}{}", options_.rank, own.name,
                     options_.ranks[size_t(peer)], theirs.name,
                     own.ranks == theirs.ranks ? "" : " of other ranks"),
         backoff);
  }

  [[noreturn]] void fail(int peer, const std::string& what, const Backoff& backoff) const {
    const std::chrono::duration<double> elapsed = backoff.elapsed(), limit = options_.timeout;
    throw base::CommError({"connect", rank_, peer, /*sequence=*/0, elapsed.count(), limit.count()}, what);
  }

  Process& process_;
  const Options& options_;
  int rank_;
  std::shared_ptr<std::vector<Hello>> hellos_;
  std::vector<int> peers_;
};

Backoff::Policy policy_of(const std::vector<Hello>& hellos, const Hello& own) {
  int ranks = 0;
  cpu_set_t together{};
  for (const Hello& hello : hellos) {
    if (hello.machine != own.machine) continue;
    ++ranks;
    CPU_OR(&together, &together, &hello.processors);
  }
  return Backoff::Policy::choose(ranks, CPU_COUNT(&together));
}

struct Communicators {
  MPI_Comm data = MPI_COMM_NULL, control = MPI_COMM_NULL;
  int code = MPI_SUCCESS;  // not, where MPI makes none
};

// Everybody is there, so this waits for nobody but a rank that was stopped just now.
void make(Communicators& made, MPI_Comm world, const std::vector<int>& ranks, int tag) {
  MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm_group(world, &all);
  MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members);
  made.code = MPI_Comm_create_group(world, members, tag, &made.data);
  if (made.code == MPI_SUCCESS) {
    MPI_Comm_set_errhandler(made.data, MPI_ERRORS_RETURN);
    made.code = MPI_Comm_dup(made.data, &made.control);
  }
  MPI_Group_free(&members);
  MPI_Group_free(&all);
}

}  // namespace

Meeting greet(Process& process, const Options& options) {
  const auto own = std::find(options.ranks.begin(), options.ranks.end(), options.rank);
  TORCH_INTERNAL_ASSERT(own != options.ranks.end());
  Meeting meeting;
  meeting.process = &process;
  meeting.rank = static_cast<int>(own - options.ranks.begin());
  const std::vector<Hello> hellos = Visit(process, options, meeting.rank).run();
  for (const Hello& hello : hellos) meeting.hosts.push_back(hello.host);
  meeting.policy = policy_of(hellos, hellos[size_t(meeting.rank)]);
  return meeting;
}

void make_communicators(Meeting& meeting, const Options& options) {
  Process& process = *meeting.process;
  const Backoff backoff({}, kLongestNap);
  const auto fail = [&](const std::string& what) {
    const std::chrono::duration<double> elapsed = backoff.elapsed(), limit = options.timeout;
    throw base::CommError(
        {"connect", meeting.rank, /*peer=*/-1, /*sequence=*/0, elapsed.count(), limit.count()}, what);
  };
  const auto made = std::make_shared<Communicators>();
  const int tag = tag_of(options.name, process.largest_tag());
  const bool is_made = process.run(
      [made, tag, world = process.world(), ranks = options.ranks] { make(*made, world, ranks, tag); },
      options.timeout);
  if (!is_made) fail(fmt::format("a rank of group {} stopped while it was made", options.name));
  if (made->code != MPI_SUCCESS)
    fail(fmt::format("MPI makes no communicator for group {}: {}", options.name, error_text(made->code)));
  meeting.data = made->data;
  meeting.control = made->control;
}

}  // namespace shardwise::comm::mpi
