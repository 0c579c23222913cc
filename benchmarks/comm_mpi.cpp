// Open MPI's side of `shardwise bench comm`: MPI_Allreduce in place, measured by the same rounds.
//
//     mpirun ... comm_mpi SECONDS MODE[,MODE] BYTES[,BYTES...]
//
// Not part of the build: benchmarks/comm_peer.py compiles it where mpicxx is there. fp32 only, for the MPI of
// its time knows no bf16.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/cli/bench_document.h"

namespace shardwise::cli {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Meeting meeting() {
  const auto largest = [](std::vector<double> values) {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    return values;
  };
  return {.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); }, .largest = largest};
}

/// Zeros, or ones where they are rewritten: as in bench_comm.cpp, nothing overflows.
CommPoint measured(int64_t bytes, BufferUse use, double seconds) {
  std::vector<float> values(static_cast<size_t>(bytes) / sizeof(float));
  const auto reduce = [&] {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  const auto rewrite = [&] { write_ones(values.data(), bytes, /*is_bf16=*/false); };
  return {bytes, use, measure({{"all_reduce", reduce, rewrite}}, use, seconds, meeting())};
}

std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find(','));
}

void run(char** argv) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char* how = "MPI_Allreduce in place from C++; pml ob1, btl vader, coll at its defaults";
  CommDocument document{"Open MPI", version(), how, size, "fp32", {}};
  for (const std::string& bytes : split(argv[3])) {
    for (const std::string& mode : split(argv[2])) {
      const BufferUse use = mode == "warm" ? BufferUse::warm : BufferUse::rewritten;
      document.points.push_back(measured(std::stoll(bytes), use, std::atof(argv[1])));
    }
  }
  if (rank == 0) std::puts(to_json(document).dump().c_str());
}

}  // namespace
}  // namespace shardwise::cli

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  shardwise::cli::run(argv);
  MPI_Finalize();
}
