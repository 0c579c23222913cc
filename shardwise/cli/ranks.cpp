#include "shardwise/cli/ranks.h"

#include <ATen/Parallel.h>

#include "shardwise/base/error.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/cli/signals.h"
#include "shardwise/comm/affinity.h"
#include "shardwise/comm/launch.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::cli {
namespace {

/// Before anything is computed: threads and their cores are fixed from then on.
void prepare_rank(const comm::Place& place) {
  end_cleanly_on_signals(place.by == comm::Place::By::self);
  base::keep_freed_memory();
  comm::bind_to_cores(place);
  at::set_num_threads(comm::threads_per_rank(place.local_size));
  base::install_memory_counter();
}

comm::Group connect(const comm::Place& place) {
  if (place.world_size == 1) return comm::Group();
  return comm::shm::connect({place.job, place.rank, place.world_size});
}

/// What fails at run time names a rank; most errors say themselves whose they are.
[[noreturn]] void throw_naming_rank(const std::exception& error, int rank) {
  const std::string text = base::one_line(error);
  const bool is_runtime_failure = dynamic_cast<const c10::ValueError*>(&error) == nullptr;
  if (is_runtime_failure && text.find("rank ") != std::string::npos) throw;
  TORCH_CHECK(false, "rank ", rank, ": ", text);
}

}  // namespace

comm::Place place_for(int64_t tp) {
  const comm::Place place = comm::place_from_environment();
  if (place.by != comm::Place::By::self) comm::check_world_size(place, tp);
  comm::threads_per_rank(place.local_size);  // refuses what is no number
  return place;
}

int run_on_ranks(const comm::Place& place, int64_t tp, const std::vector<std::string>& argv,
                 const std::function<void(const comm::Group&)>& body) {
  if (place.by == comm::Place::By::self && tp > 1) return comm::launch(static_cast<int>(tp), argv);
  prepare_rank(place);
  const comm::Group group = connect(place);
  try {
    body(group);
  } catch (const std::exception& error) {  // what the caller can get wrong was refused before
    group.abort(base::one_line(error));
    throw_naming_rank(error, place.rank);
  }
  return 0;
}

}  // namespace shardwise::cli
