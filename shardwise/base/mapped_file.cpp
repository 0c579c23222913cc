#include "shardwise/base/mapped_file.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shardwise::base {

MappedFile::MappedFile(const std::string& path) : file_(File::open_to_read(path)), size_(file_.size()) {
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, file_.descriptor(), 0);
  TORCH_CHECK_VALUE(map != MAP_FAILED, path, ": must be mappable; got: ", std::strerror(errno), " [SW0153]");
  map_ = static_cast<const uint8_t*>(map);
}

MappedFile::~MappedFile() {
  if (map_) ::munmap(const_cast<uint8_t*>(map_), size_);
}

void MappedFile::read(int64_t offset, int64_t length, uint8_t* dst) const {
  // Reading the mapping beyond the end of a truncated file raises SIGBUS; File::read throws instead.
  if (offset + length > file_.size()) return file_.read(offset, length, dst);
  std::copy_n(map_ + offset, length, dst);  // memcpy must not get the null of an empty vector
}

}  // namespace shardwise::base
