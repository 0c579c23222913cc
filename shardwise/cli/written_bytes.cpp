#include "shardwise/cli/written_bytes.h"

#include "shardwise/cli/signals.h"

namespace shardwise::cli {

WrittenBytes::WrittenBytes(std::string command) : command_(std::move(command)) {
  remember_signals();
}

checkpoint::OnProgress WrittenBytes::on_progress() {
  return [this](int64_t done_bytes, int64_t all_bytes) {
    check_signals();
    line_.show_bytes(command_, done_bytes, all_bytes);
  };
}

}  // namespace shardwise::cli
