#include "shardwise/device/device.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/comm/collective_backend.h"
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

comm::Group connect_opened(const Plugin& plugin, const std::string& name, const comm::Group& host) {
  const at::Device device = open(plugin, name);
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

/// Returns the group on GPUs, or that of the host if there is none.
comm::Group connect_to_any(const comm::Group& host) {
  try {
    return connect_opened(load("cuda"), "cuda", host);
  } catch (const c10::ValueError&) {
    return host;
  }
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
  if (name == "auto") return connect_to_any(host);
  try {
    return connect_opened(load(name), name, host);
  } catch (const c10::ValueError& error) {  // of the machine, so the same on all ranks
    throw base::CollectiveError(base::one_line(error));
  }
}

}  // namespace shardwise::device
