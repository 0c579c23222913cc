#include "shardwise/io/writer.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <utility>

namespace shardwise::io {

SafetensorsWriter SafetensorsWriter::create(const std::string& path, FileLayout layout) {
  SafetensorsWriter writer(base::File::create(path), std::move(layout));
  try {
    writer.file_.allocate(writer.layout_.total_bytes);
    const std::string header = header_text(writer.layout_);
    writer.file_.write(0, static_cast<int64_t>(header.size()), header.data());
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return writer;
}

SafetensorsWriter SafetensorsWriter::open(const std::string& path, FileLayout layout) {
  SafetensorsWriter writer(base::File::open_to_write(path), std::move(layout));
  const int64_t bytes = writer.file_.size(), planned = writer.layout_.total_bytes;
  if (bytes != planned) {
    throw base::FileError("open [SW0354]", path,
                          "must be " + std::to_string(planned) + " bytes; got " + std::to_string(bytes));
  }
  return writer;
}

void SafetensorsWriter::write(const TensorInfo& tensor, int64_t offset, int64_t length,
                              const void* src) const {
  TORCH_INTERNAL_ASSERT(offset >= 0 && length >= 0 && offset <= tensor.bytes() - length, tensor.name,
                        ": bytes ", offset, " + ", length, " of ", tensor.bytes());
  file_.write(tensor.begin + offset, length, src);
}

}  // namespace shardwise::io
