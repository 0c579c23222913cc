#include "shardwise/checkpoint/index_format.h"

#include <c10/util/Exception.h>

namespace shardwise::checkpoint {

void check_index_format(const base::Fields& fields, const std::string& path, const std::string& format,
                        int64_t version) {
  const std::string found_format = fields.text("format");
  const int64_t found_version = fields.integer("version");
  TORCH_CHECK_VALUE(found_format == format && found_version == version, path, ": must be ", format,
                    " of version ", version, "; got ", found_format, " of version ", found_version,
                    " [SW0277]");
}

}  // namespace shardwise::checkpoint
