// Open MPI's side of `shardwise bench comm`: MPI_Allreduce in place, timed with the same method.
//
//     mpirun ... comm_mpi SECONDS MODE[,MODE] BYTES[,BYTES...]
//
// Not part of the build: benchmarks/comm_peer.py compiles it if mpicxx is installed. fp32 only, because Open
// MPI does not support bf16.
#include <mpi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "shardwise/bench/timing.h"

namespace shardwise::bench {
namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "comm_mpi: %s\n", what.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Synchronizer synchronizer() {
  const auto max_over_ranks = [](std::vector<double> values) {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    return values;
  };
  return {.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); }, .max_over_ranks = max_over_ranks};
}

/// Zeros in memory like shardwise's (base/memory_counter.cpp): requests huge pages for two huge pages and
/// more, all before the first access.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), room_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    void* mapped =
        mmap(nullptr, room_ + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes");
    mapped_ = static_cast<std::byte*>(mapped);
    if (bytes_ >= 2 * kHugePage) madvise(data(), room_, MADV_HUGEPAGE);  // best effort
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { munmap(mapped_, room_ + kHugePage); }

  float* data() const {
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    return reinterpret_cast<float*>(mapped_ + (kHugePage - address % kHugePage) % kHugePage);
  }
  std::span<float> values() const { return {data(), bytes_ / sizeof(float)}; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  size_t bytes_, room_;
  std::byte* mapped_;
};

/// Aborts unless every sum equals the number of ranks.
void check_sums_of_ones(std::span<const float> values) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const bool right = std::ranges::all_of(values, [=](float x) { return x == static_cast<float>(ranks); });
  if (!right) fail("wrong sum of " + std::to_string(values.size_bytes()) + " bytes of ones");
}

/// Measures one point on zeros, or on ones if rewritten: as in shardwise/bench/all_reduce.cpp, nothing
/// overflows.
Point measured(int64_t bytes, CacheState state, double seconds) {
  const Buffer buffer(static_cast<size_t>(bytes));
  const std::span<float> values = buffer.values();
  const auto reduce = [&] {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  const auto rewrite = [&] { write_ones(values.data(), bytes, /*is_bf16=*/false); };
  rewrite();
  reduce();
  check_sums_of_ones(values);
  std::ranges::fill(values, 0.f);
  return {bytes, state, measure({{"all_reduce", reduce, rewrite}}, state, seconds, synchronizer())};
}

std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string full(text, static_cast<size_t>(length));
  return full.substr(0, full.find(','));
}

void run(char** argv) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char* method = "MPI_Allreduce in place from C++; pml ob1, btl vader, default coll";
  Document document{"Open MPI", version(), method, size, "fp32", {}};
  for (const std::string& bytes : split(argv[3])) {
    for (const std::string& mode : split(argv[2])) {
      const CacheState state = mode == "warm" ? CacheState::warm : CacheState::rewritten;
      document.points.push_back(measured(std::stoll(bytes), state, std::atof(argv[1])));
    }
  }
  if (rank == 0) std::puts(to_json(document).dump().c_str());
}

}  // namespace
}  // namespace shardwise::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  shardwise::bench::run(argv);
  MPI_Finalize();
}
