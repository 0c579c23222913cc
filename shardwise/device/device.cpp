#include "shardwise/device/device.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/nccl/nccl.h"
#include "shardwise/device/plugin.h"
#include "shardwise/kernels/device.h"
#include "shardwise/version.h"

namespace shardwise::device {
namespace {

/// Names without a directory: the loader searches LD_LIBRARY_PATH and the program's RUNPATH.
std::string file_of(const std::string& name) {
  return "shardwise_" + name + ".so";
}

std::string hint_of(const std::string& name) {
  if (name == "cuda") return "build it with .venv-cuda (tools/setup cuda), or use --device cpu";
  return "build it with -DSHARDWISE_TESTS=ON, or use --device cpu";
}

/// Returns the plugin. It is never closed, because torch keeps what it registers.
const Plugin& load(const std::string& name) {
  const std::string file = file_of(name);
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = library != nullptr ? nullptr : dlerror();
  TORCH_CHECK_VALUE(library != nullptr, "--device ", name, ": its plugin must load; got ", why, "; ",
                    hint_of(name), " [SW0843]");
  const auto* const plugin = static_cast<const Plugin*>(dlsym(library, kPluginSymbol));
  TORCH_CHECK_VALUE(plugin != nullptr && plugin->version == std::string(SHARDWISE_VERSION), "--device ", name,
                    ": its plugin must be of this version, ", SHARDWISE_VERSION, "; got ", file,
                    plugin != nullptr ? std::string(" of version ") + plugin->version
                                      : std::string(" without ") + kPluginSymbol,
                    "; rebuild it [SW0844]");
  return *plugin;
}

at::Device open(const Plugin& plugin, const std::string& name) try {
  const at::Device device = plugin.open();
  kernels::set_device_kernels(device.type(), plugin.kernels);
  return device;
} catch (const c10::ValueError&) {
  throw;
} catch (const c10::Error& error) {
  TORCH_CHECK_VALUE(false, "--device ", name,
                    ": needs a device; got none: ", base::without_code(base::one_line(error)),
                    "; use --device cpu [SW0845]");
}

/// A plugin whose device is open.
struct Opened {
  const Plugin* plugin = nullptr;
  at::Device device = at::kCPU;
};

/// Opens the device on every rank. Errors: base::CollectiveError on all ranks if one has none, so that no
/// rank waits for it.
Opened open_on_all(const std::string& name, const comm::Group& host) {
  Opened opened;
  std::string error;
  try {
    opened.plugin = &load(name);
    opened.device = open(*opened.plugin, name);
  } catch (const c10::ValueError& failed) {
    error = base::one_line(failed);
  }
  const std::string first = comm::first_text(error, host);
  if (!first.empty()) throw base::CollectiveError(first);
  return opened;
}

comm::Group connect_on_all(const std::string& name, const comm::Group& host) {
  const auto [opened, device] = open_on_all(name, host);
  const Plugin& plugin = *opened;
  if (host.size() == 1) return comm::Group(device);
  comm::CollectiveBackend& backend = *host.backend();
  if (plugin.collectives == nullptr) {
    comm::nccl::ConnectOptions options(host);
    options.timeout = backend.timeout();
    return comm::nccl::connect(options);
  }
  auto on_device = plugin.collectives(backend);
  comm::CollectiveBackend* const calls = on_device.get();
  // The host's group lives as long as what calls its backend.
  return comm::Group(std::shared_ptr<comm::CollectiveBackend>(
      calls, [on_device = std::move(on_device), host](comm::CollectiveBackend*) {}));
}

}  // namespace

const std::vector<std::string>& names() {
  static const std::vector<std::string> all{"auto", "cpu", "cuda", "emulated"};
  return all;
}

void check_name(const std::string& command, const std::string& name) {
  TORCH_CHECK_VALUE(
      std::ranges::count(names(), name) == 1, command,
      fmt::format(": --device must be one of {}; got {} [SW0846]", fmt::join(names(), ", "), name));
}

comm::Group connect(const std::string& name, const comm::Group& host) {
  if (name == "cpu") return host;
  if (name != "auto") return connect_on_all(name, host);
  try {
    return connect_on_all("cuda", host);
  } catch (const base::CollectiveError&) {  // the same on all ranks
    return host;
  }
}

}  // namespace shardwise::device
