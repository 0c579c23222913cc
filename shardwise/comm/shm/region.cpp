#include "shardwise/comm/shm/region.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#ifdef __SANITIZE_THREAD__
#include <map>
#include <mutex>
#endif

namespace shardwise::comm::shm {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMinStep = size_t{64} << 10;
constexpr size_t kMaxHeap = size_t{64} << 30;

size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

uint64_t random_number() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

bool can_reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  munmap(p, bytes);
  return true;
}

// Ranks run the same program, so no rank needs more than twice its even share of the machine's memory.
size_t choose_heap_bytes(int ranks) {
  const size_t machine = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  size_t bytes = round_up(std::min(kMaxHeap, 2 * machine / size_t(ranks)), kHugePage);
  while (bytes > kHugePage && !can_reserve(bytes * size_t(ranks))) bytes = round_up(bytes / 2, kHugePage);
  return bytes;
}

std::byte* map_file(int file, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(p != MAP_FAILED, "shared memory: cannot map ", bytes, " bytes; ", std::strerror(errno),
              " [SW0132]");
  if (madvise(p, bytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(p, bytes);
    TORCH_CHECK(false, "shared memory: cannot keep ", bytes, " bytes from forks; ", std::strerror(error),
                " [SW0578]");
  }
  madvise(p, bytes, MADV_HUGEPAGE);  // best effort: most systems ignore it for memfds unless configured
  return static_cast<std::byte*>(p);
}

#ifdef __SANITIZE_THREAD__
// Ranks that are threads of one process share a mapping here. With two mappings, the sanitizer would treat
// one byte as two, and would miss races and the ordering that a flag establishes.
class Mappings {
 public:
  std::byte* map(int file, size_t bytes) {
    struct stat status {};
    TORCH_INTERNAL_ASSERT(fstat(file, &status) == 0);
    const std::lock_guard lock(mutex_);
    Mapping& mapping = mappings_[status.st_ino];  // unique: all files are on one file system
    if (mapping.users++ == 0) mapping.base = map_file(file, bytes);
    return mapping.base;
  }
  void unmap(std::byte* base, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find(mappings_, base, [](const auto& entry) { return entry.second.base; });
    if (--found->second.users > 0) return;
    munmap(base, bytes);
    mappings_.erase(found);
  }
  static Mappings& of_process() {
    static Mappings& mappings = *new Mappings;  // leaked: groups may live as long as the process
    return mappings;
  }

 private:
  struct Mapping {
    std::byte* base = nullptr;
    int users = 0;
  };
  std::mutex mutex_;
  std::map<ino_t, Mapping> mappings_;
};

std::byte* map_shared(int file, size_t bytes) {
  return Mappings::of_process().map(file, bytes);
}
void unmap_shared(std::byte* base, size_t bytes) {
  Mappings::of_process().unmap(base, bytes);
}
#else
std::byte* map_shared(int file, size_t bytes) {
  return map_file(file, bytes);
}
void unmap_shared(std::byte* base, size_t bytes) {
  munmap(base, bytes);
}
#endif

/// Returns 0 or an errno. Above the limit of `ulimit -f`, ftruncate sends a signal that would end a program
/// that does not ignore it.
int resize(const Fd& file, size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) return EFBIG;
  return ftruncate(file.get(), off_t(bytes)) == 0 ? 0 : errno;
}

}  // namespace

Region Region::create(int ranks) {
  TORCH_INTERNAL_ASSERT(ranks <= kMaxRanks);
  const size_t bytes = kHeapOffset + choose_heap_bytes(ranks);
  Fd file(memfd_create("shardwise", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  TORCH_CHECK(file, "shared memory: memfd_create; ", std::strerror(errno), " [SW0127]");
  const int error = resize(file, bytes);
  TORCH_CHECK(error == 0, "shared memory: ftruncate to ", bytes, " bytes; ", std::strerror(error),
              " [SW0128]");
  TORCH_CHECK(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
              "shared memory: sealing; ", std::strerror(errno), " [SW0131]");
  std::byte* base = map_shared(file.get(), bytes);
  Region region(std::move(file), base, bytes);
  region.commit(0, Control::bytes(ranks));
  region.control().identity = random_number();
  return region;
}

Region Region::map(Fd file, size_t bytes) {
  struct stat status {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  TORCH_CHECK(fstat(file.get(), &status) == 0 && size_t(status.st_size) == bytes && bytes > kHeapOffset &&
                  seals >= 0 && (seals & F_SEAL_SHRINK) != 0,
              "shared memory: the descriptor that a peer sent must be a memory region of ", bytes,
              " bytes [SW0134]");
  std::byte* base = map_shared(file.get(), bytes);
  return {std::move(file), base, bytes};
}

Region::Region(Region&& other) noexcept
    : file_(std::move(other.file_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      process_(other.process_) {}

// In a fork something else may be mapped there.
Region::~Region() {
  if (base_ != nullptr && !process_.is_fork()) unmap_shared(base_, bytes_);
}

// Before Linux 6.11 a signal interrupts fallocate and undoes its work: under a profiler's timer a large call
// would never succeed. So the calls are small, and smaller after a signal.
void Region::commit(size_t begin, size_t end) const {
  size_t step = kHugePage, done = begin;
  while (done < end) {
    const size_t next = std::min(end, done / step * step + step);
    if (fallocate(file_.get(), 0, off_t(done), off_t(next - done)) == 0) {
      done = next;
    } else if (errno == EINTR) {
      step = std::max(kMinStep, step / 2);
    } else {
      const int error = errno;
      if (done > begin)
        fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(begin), off_t(done - begin));
      TORCH_CHECK_WITH(OutOfMemoryError, false, "shared memory: no memory for ", end - begin, " more bytes; ",
                       begin, " bytes are in use; ", std::strerror(error), " [SW0376]");
    }
  }
}

}  // namespace shardwise::comm::shm
