#include "shardwise/text/corpus.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

namespace shardwise::text {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> entries_of(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  TORCH_CHECK_VALUE(!error, "text ", directory, ": must be a readable directory; got: ", error.message(),
                    " [SW0142]");
  std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Corpus::Corpus(const std::vector<std::string>& paths) {
  TORCH_CHECK_VALUE(!paths.empty(), "text: at least one file or directory is required; got none [SW0143]");
  for (const std::string& path : paths) add_path(path);
  TORCH_CHECK_VALUE(size_ > 0, "text ", paths.front(), ": must contain at least one byte; got none in ",
                    paths.size(), paths.size() == 1 ? " path" : " paths", " [SW0144]");
}

void Corpus::add_path(const std::string& path) {
  if (base::is_directory(path)) {
    add_directory(path);
  } else {
    add_file(path);
  }
}

void Corpus::add_directory(const std::string& directory) {
  for (const std::string& name : entries_of(directory)) {
    const std::string path = (fs::path(directory) / name).string();
    // Follows links to directories only if the caller names them: others may form cycles.
    std::error_code error;
    const bool is_linked_directory = fs::is_symlink(path, error) && base::is_directory(path);
    if (!is_linked_directory) add_path(path);
  }
}

void Corpus::add_file(const std::string& path) {
  const base::File file = base::File::open_to_read(path);
  const int64_t bytes = file.size();
  if (bytes == 0) return;
  const uint64_t fingerprint = file.fingerprint();
  fingerprint_ = base::mix(fingerprint_, fingerprint);
  files_.push_back({path, size_, bytes, fingerprint, nullptr, {}});
  size_ += bytes;
}

std::vector<std::string> Corpus::paths() const {
  std::vector<std::string> paths;
  for (const Source& file : files_) paths.push_back(file.path);
  return paths;
}

void Corpus::read(int64_t offset, int64_t length, uint8_t* dst) const {
  TORCH_CHECK_VALUE(offset >= 0 && length >= 0 && offset <= size_ - length, "text: reads must be within its ",
                    size_, " bytes; got ", length, " at ", offset, " [SW0150]");
  const std::lock_guard lock(mutex_);
  const auto after = std::upper_bound(files_.begin(), files_.end(), offset,
                                      [](int64_t at, const Source& file) { return at < file.begin; });
  for (size_t i = after - files_.begin() - 1; length > 0; ++i) {
    const int64_t begin = offset - files_[i].begin;
    const int64_t bytes = std::min(length, files_[i].size - begin);
    opened(i).read(begin, bytes, dst);
    dst += bytes, offset += bytes, length -= bytes;
  }
}

std::string Corpus::read_file(int64_t index) const {
  const Source& file = files_.at(index);
  std::string bytes(static_cast<size_t>(file.size), '\0');
  read(file.begin, file.size, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

const base::MappedFile& Corpus::opened(size_t index) const {
  Source& source = files_[index];
  if (source.open) {
    most_recent_.splice(most_recent_.begin(), most_recent_, source.recency);
    return *source.open;
  }
  if (most_recent_.size() >= kMaxOpenFiles) {
    files_[most_recent_.back()].open.reset();
    most_recent_.pop_back();
  }
  auto file = std::make_unique<base::MappedFile>(source.path);
  TORCH_CHECK_VALUE(file->fingerprint() == source.fingerprint, "text ", source.path,
                    ": must not change during the run; got another file or modification time, ", file->size(),
                    " bytes instead of ", source.size, " [SW0154]");
  source.open = std::move(file);
  source.recency = most_recent_.insert(most_recent_.begin(), index);
  return *source.open;
}

}  // namespace shardwise::text
