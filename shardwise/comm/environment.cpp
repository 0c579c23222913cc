#include "shardwise/comm/environment.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace shardwise::comm {
namespace {

std::string text_of(const char* variable, const char* starter) {
  const char* value = std::getenv(variable);
  TORCH_CHECK_VALUE(value, "environment: ", starter, " sets all of its variables; got no ", variable);
  return value;
}

int count_of(const char* variable, int least, const char* starter) {
  text_of(variable, starter);
  return count_from_environment(variable, least, 0);
}

void check_rank(const char* rank_variable, int rank, const char* size_variable, int size) {
  TORCH_CHECK_VALUE(rank < size, "environment: ", rank_variable, " is below ", size_variable, "; got ", rank,
                    " and ", size);
}

Place from_launcher() {
  constexpr const char* kStarter = "the launcher";
  Place place;
  place.by = Place::By::launcher;
  place.rank = place.local_rank = count_of("SHARDWISE_RANK", 0, kStarter);
  place.world_size = place.local_size = count_of("SHARDWISE_WORLD_SIZE", 1, kStarter);
  place.job = text_of("SHARDWISE_JOB", kStarter);
  check_rank("SHARDWISE_RANK", place.rank, "SHARDWISE_WORLD_SIZE", place.world_size);
  return place;
}

// After a restart the agent keeps run id and address, while ranks of the last try may still be ending: the
// count keeps both apart.
std::string torchrun_job() {
  constexpr const char* kStarter = "torchrun";
  return fmt::format("torchrun/{}/{}:{}/{}", text_of("TORCHELASTIC_RUN_ID", kStarter),
                     text_of("MASTER_ADDR", kStarter), text_of("MASTER_PORT", kStarter),
                     count_of("TORCHELASTIC_RESTART_COUNT", 0, kStarter));
}

Place from_torchrun() {
  constexpr const char* kStarter = "torchrun";
  Place place;
  place.by = Place::By::torchrun;
  place.rank = count_of("RANK", 0, kStarter);
  place.world_size = count_of("WORLD_SIZE", 1, kStarter);
  place.local_rank = count_of("LOCAL_RANK", 0, kStarter);
  place.local_size = count_of("LOCAL_WORLD_SIZE", 1, kStarter);
  check_rank("RANK", place.rank, "WORLD_SIZE", place.world_size);
  check_rank("LOCAL_RANK", place.local_rank, "LOCAL_WORLD_SIZE", place.local_size);
  TORCH_CHECK_VALUE(place.local_size == place.world_size,
                    "environment: shared memory serves the ranks of one host; got ", place.world_size,
                    " ranks, ", place.local_size, " of them here; run torchrun with --nnodes 1");
  place.job = torchrun_job();
  return place;
}

}  // namespace

int count_from_environment(const char* variable, int least, int fallback) {
  const char* text = std::getenv(variable);
  if (!text) return fallback;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, value);
  TORCH_CHECK_VALUE(error == std::errc() && stopped == end && value >= least, "environment: ", variable,
                    " is a whole number, at least ", least, "; got '", text, "'");
  return value;
}

Place place_from_environment() {
  if (std::getenv("SHARDWISE_RANK")) return from_launcher();
  if (std::getenv("RANK") || std::getenv("TORCHELASTIC_RUN_ID")) return from_torchrun();
  return {};
}

void check_world_size(const Place& place, int64_t product_of_degrees) {
  const char* starter = place.by == Place::By::torchrun   ? "torchrun"
                        : place.by == Place::By::launcher ? "the launcher"
                                                          : "no launcher";
  TORCH_CHECK_VALUE(place.world_size == product_of_degrees,
                    "launch: the number of ranks equals the product of the degrees of parallelism; got ",
                    place.world_size, " from ", starter, " for degrees of ", product_of_degrees,
                    place.by == Place::By::torchrun
                        ? fmt::format("; run torchrun with --nproc-per-node {}", product_of_degrees)
                        : "");
}

}  // namespace shardwise::comm
