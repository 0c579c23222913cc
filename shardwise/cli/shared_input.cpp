#include "shardwise/cli/shared_input.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "shardwise/base/environment.h"
#include "shardwise/base/files.h"
#include "shardwise/cli/input.h"

namespace shardwise::cli {
namespace {

using Launcher = launch::LaunchContext::Launcher;

constexpr const char* kInputVariable = "SHARDWISE_INPUT";  // the path of the copy in this process

/// Returns the path of a new file in memory, which this process and those that it starts keep open.
std::string new_file_in_memory() {
  const int file = memfd_create("shardwise-input", /*flags=*/0);
  TORCH_CHECK(file >= 0, "standard input: cannot create its copy for the ranks; ", std::strerror(errno),
              " [SW0587]");
  return "/proc/self/fd/" + std::to_string(file);
}

void leave_for_ranks(const std::string& text) {
  const std::string path = new_file_in_memory();
  base::File::open_to_write(path).write(0, std::ssize(text), text.data());
  ::setenv(kInputVariable, path.c_str(), /*overwrite=*/1);
}

}  // namespace

std::string shared_input(const std::string& flag, const launch::LaunchContext& context, int64_t tp) {
  if (const auto path = base::env_text(kInputVariable); path && context.launcher == Launcher::launcher)
    return base::read_text(*path, std::numeric_limits<int64_t>::max());
  TORCH_CHECK_VALUE(context.world_size == 1, flag, " - needs ranks that --tp starts; got ",
                    context.world_size, " of another launcher, without a common standard input; give a file",
                    " [SW0588]");
  std::string text = read_input();
  if (tp > 1) leave_for_ranks(text);
  return text;
}

}  // namespace shardwise::cli
