#include "tests/mutation/generated/mutant.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace shardwise {
namespace {

constexpr size_t kMost = 4096;  // mutants

int chosen() {
  const char* const number = std::getenv("SHARDWISE_MUTANT");
  return number == nullptr ? -1 : std::atoi(number);
}

/// A byte for each mutant, in a file that forked and started processes share.
volatile char* reached() {
  const char* const path = std::getenv("SHARDWISE_REACHED");
  if (path == nullptr) return nullptr;
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, kMost) != 0) std::abort();
  void* const bytes = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (bytes == MAP_FAILED) std::abort();
  return static_cast<volatile char*>(bytes);
}

}  // namespace

bool mutant(int number) {
  static const int kChosen = chosen();
  static volatile char* const kReached = reached();
  if (kReached != nullptr) kReached[number] = 1;
  return number == kChosen;
}

}  // namespace shardwise
