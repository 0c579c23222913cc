#include "shardwise/cli/job_directory.h"

#include <cstdlib>

#include "shardwise/base/environment.h"
#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/cli/signals.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::cli {
namespace {
constexpr const char* kDirectoryVariable = "SHARDWISE_JOB_DIRECTORY";
}  // namespace

JobDirectory::JobDirectory(const launch::LaunchContext& context) {
  using Launcher = launch::LaunchContext::Launcher;
  const auto inherited = base::env_text(kDirectoryVariable);
  const bool is_inherited = context.launcher == Launcher::launcher && inherited;
  if (is_inherited) path_ = *inherited;
  if (is_inherited || context.rank > 0) return;
  if (context.launcher == Launcher::self) remember_signals();
  path_ = base::make_temporary_directory("shardwise-");
  is_creator_ = true;
  if (context.launcher == Launcher::self) ::setenv(kDirectoryVariable, path_.c_str(), /*overwrite=*/1);
}

JobDirectory::~JobDirectory() {
  if (!is_creator_) return;
  try {
    base::remove_all(path_);
  } catch (const std::exception& error) {
    base::log_warning(base::one_line(error));
  }
}

std::string JobDirectory::path(const comm::Group& group) const {
  return comm::first_text(group.rank() == 0 ? path_ : "", group);
}

}  // namespace shardwise::cli
