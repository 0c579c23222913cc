#include "shardwise/cli/write_progress.h"

#include "shardwise/cli/signals.h"

namespace shardwise::cli {

WriteProgress::WriteProgress(std::string command) : command_(std::move(command)) {
  remember_signals();
}

checkpoint::OnProgress WriteProgress::on_progress() {
  return [this](int64_t done_bytes, int64_t total_bytes) {
    check_signals();
    line_.show_bytes(command_, done_bytes, total_bytes);
  };
}

}  // namespace shardwise::cli
