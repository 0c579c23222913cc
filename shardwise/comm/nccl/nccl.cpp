#include "shardwise/comm/nccl/nccl.h"

#include <dlfcn.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/nccl/plugin.h"
#include "shardwise/comm/nccl/store.h"
#include "shardwise/comm/rendezvous.h"

namespace shardwise::comm::nccl {
namespace {

// A name without a directory: the loader searches LD_LIBRARY_PATH and the program's RUNPATH.
constexpr char kPluginFile[] = "shardwise_nccl.so";

const Plugin& load_plugin() {
  void* const library = dlopen(kPluginFile, RTLD_NOW | RTLD_LOCAL);
  const char* const why = library ? nullptr : dlerror();
  TORCH_CHECK_VALUE(library != nullptr, "connect: the NCCL plugin must load; got ", why,
                    "; install torch with all packages that it requires [SW0304]");
  const void* const plugin = dlsym(library, kPluginSymbol);
  TORCH_CHECK_VALUE(plugin != nullptr, "connect: the NCCL plugin must be from this build; got ", kPluginFile,
                    " without ", kPluginSymbol, " [SW0305]");
  return *static_cast<const Plugin*>(plugin);
}

/// Returns the plugin. It is never closed, because torch keeps what it registers.
const Plugin& plugin() {
  static const Plugin& loaded = load_plugin();
  return loaded;
}

int device_index(const ConnectOptions& options, const std::vector<PeerInfo>& ranks) {
  const auto local = ranks.begin() + options.bootstrap_group.rank();
  const auto is_local = [&](const PeerInfo& rank) { return rank.node == local->node; };
  return options.device.value_or(static_cast<int>(std::count_if(ranks.begin(), local, is_local)));
}

/// Returns the error of a rank without the device, or an empty string.
std::string device_error(int rank, int device) {
  try {
    const int count = device_count();
    TORCH_CHECK_VALUE(device >= 0 && device < count, "connect: NCCL needs one GPU per rank; got ", count,
                      " GPUs, and device ", device, " for rank ", rank,
                      "; start fewer ranks per node, or set ConnectOptions::device [SW0306]");
    return {};
  } catch (const c10::ValueError& error) {
    return base::one_line(error);
  }
}

/// Throws the same error on all ranks if one lacks its device, so that no rank waits for it in NCCL.
void check_devices(const Group& group, int device) {
  const std::string first = first_text(device_error(group.rank(), device), group);
  if (!first.empty()) throw base::CollectiveError(first);
}

/// Returns the address at which the other ranks reach rank 0's node.
std::string address_of_first(const std::vector<PeerInfo>& ranks) {
  const auto is_local = [&](const PeerInfo& rank) { return rank.node == ranks.front().node; };
  return std::ranges::all_of(ranks, is_local) ? "127.0.0.1" : ranks.front().host;
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
    TORCH_CHECK_VALUE(false, base::with_code_last(c10::str("connect: NCCL needs one GPU per rank; got none: ",
                                                           base::one_line(error), " [SW0306]")));
  }
}

Group connect(const ConnectOptions& options) {
  const Group& bootstrap = options.bootstrap_group;
  const std::vector<PeerInfo> ranks =
      gather_values(local_peer_info("nccl", bootstrap.rank(), bootstrap.size()), bootstrap);
  const int device = device_index(options, ranks);
  check_devices(bootstrap, device);
  const auto store = open_store(bootstrap, address_of_first(ranks), options.timeout);
  return Group(plugin().connect({store, bootstrap.rank(), bootstrap.size(), device, options.timeout}));
}

}  // namespace shardwise::comm::nccl
