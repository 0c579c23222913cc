#include "shardwise/comm/nccl/nccl.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/nccl/plugin.h"
#include "shardwise/comm/nccl/store.h"
#include "shardwise/comm/node.h"

namespace shardwise::comm::nccl {
namespace {

const Plugin& load_plugin() {
  void* const library = dlopen(SHARDWISE_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  const char* const why = library ? nullptr : dlerror();
  TORCH_CHECK_VALUE(library != nullptr, "connect: NCCL's plugin must load; got ", why,
                    "; install torch with all packages that it asks for");
  const void* const plugin = dlsym(library, kPluginSymbol);
  TORCH_CHECK_VALUE(plugin != nullptr, "connect: NCCL's plugin must be of this build; got ",
                    SHARDWISE_NCCL_PLUGIN, " without ", kPluginSymbol);
  return *static_cast<const Plugin*>(plugin);
}

/// Never closed: what it registers with torch stays.
const Plugin& plugin() {
  static const Plugin& loaded = load_plugin();
  return loaded;
}

/// By rank.
using Hosts = std::vector<uint64_t>;

int wanted_device(const Options& options, const Hosts& hosts) {
  const auto own = hosts.begin() + options.meeting.rank();
  return options.device.value_or(static_cast<int>(std::count(hosts.begin(), own, *own)));
}

/// Why this rank cannot take part; empty: it can.
std::string refusal(int rank, int device) {
  try {
    const int count = device_count();
    TORCH_CHECK_VALUE(device >= 0 && device < count,
                      "connect: NCCL needs a GPU of its own for each rank; got ", count, " for rank ", rank,
                      ", which is to use number ", device,
                      "; start fewer ranks on a host, or name another device");
    return {};
  } catch (const c10::ValueError& error) {
    return base::one_line(error);
  }
}

/// All ranks refuse alike, before any waits in NCCL for one that cannot come.
void check_devices(const Group& meeting, int device) {
  const std::string first = first_text(refusal(meeting.rank(), device), meeting);
  if (!first.empty()) throw base::CollectiveError(first);
}

/// Of this machine, for the others' ranks.
std::string own_address(const Hosts& hosts) {
  if (std::ranges::all_of(hosts, [&](uint64_t host) { return host == hosts.front(); })) return "127.0.0.1";
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

bool is_built_in() {
  return true;
}

int device_count() {
  try {
    return plugin().device_count();
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "connect: NCCL joins ranks with a GPU each; got none: ", base::one_line(error));
  }
}

Group connect(const Options& options) {
  const Group& meeting = options.meeting;
  const Hosts hosts = gather_values(own_node(), meeting);
  const int device = wanted_device(options, hosts);
  check_devices(meeting, device);
  const auto store = open_store(meeting, own_address(hosts), options.timeout);
  return Group(plugin().connect({store, meeting.rank(), meeting.size(), device, options.timeout}));
}

}  // namespace shardwise::comm::nccl
