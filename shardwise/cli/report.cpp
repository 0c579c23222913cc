// `shardwise report`: compares the runs whose figures `shardwise train --report` wrote.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "shardwise/base/files.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/runs_page.h"
#include "shardwise/cli/runs_text.h"

namespace shardwise::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::optional<std::string> profile, out;
};

void add_flags(Flags& flags, ReportOptions& o) {
  flags.arguments("RUN", o.runs, "files of shardwise train --report; losses are compared with the first's");
  flags.value(
      "--profile FILE", o.profile,
      "trace of --profile of train, generate or bench: also show its last step, prompt or token by rank");
  flags.value("--out,-o FILE", o.out, "write a page for a browser, which needs no network, instead of text");
}

void check_out(const ReportOptions& o) {
  const std::string parent = std::filesystem::path(*o.out).parent_path().string();
  const std::string directory = parent.empty() ? "." : parent;
  const bool is_writable =
      base::is_directory(directory) && faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  TORCH_CHECK_VALUE(is_writable, "report: --out must be in a directory that can be written to; got ", *o.out,
                    " [SW0823]");
  base::check_new_or_regular_file("report: --out", *o.out);
  std::vector<std::string> inputs = o.runs;
  if (o.profile) inputs.push_back(*o.profile);
  base::check_not_an_input("report: --out", *o.out, inputs);
}

}  // namespace

int report_command(const Call& call) {
  ReportOptions options;
  Flags flags(
      "report",
      "Compares training runs: loss, time and bytes of a step, and memory, measured next to planned. Prints "
      "tables and curves, or writes a page.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  TORCH_CHECK_VALUE(!options.runs.empty(),
                    "report: RUN must name files that train --report wrote; got none [SW0822]");
  if (options.out) check_out(options);
  const std::vector<RunFile> runs = read_runs(options.runs);
  std::vector<TimelineRank> timeline;
  if (options.profile) timeline = read_timeline(*options.profile);
  if (options.out)
    base::write_text(*options.out, page_of(runs, timeline));
  else
    print(to_text(runs) + (timeline.empty() ? "" : "\n" + to_text(timeline)));
  return 0;
}

}  // namespace shardwise::cli
