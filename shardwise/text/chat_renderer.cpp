#include "shardwise/text/chat_renderer.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace shardwise::text {

using nlohmann::json;

namespace {

using Render = void(const std::string& request, double seconds, int64_t bytes,
                    std::string& answer);  // jinja/module.cpp

Render* open_module() {
  // A name without a directory: the loader searches LD_LIBRARY_PATH and the program's RUNPATH. RTLD_GLOBAL:
  // Python's C extension modules resolve libpython's symbols in the global namespace.
  void* module = dlopen("shardwise_chat_renderer.so", RTLD_NOW | RTLD_GLOBAL);
  TORCH_CHECK(module, "chat template: the renderer module must load; got ", dlerror(),
              "; add its directory to LD_LIBRARY_PATH [SW0223]");
  return reinterpret_cast<Render*>(dlsym(module, "shardwise_render_chat"));
}

std::string render(const std::string& request, const RenderLimits& limits) {
  static Render* const module = open_module();
  std::string answer;
  try {
    module(request, limits.seconds, limits.bytes, answer);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "chat template: Python must start with jinja2; got ", error.what(),
                "; see tools/setup [SW0224]");
  }
  return answer;
}

std::string dump(const nlohmann::ordered_json& request) {
  try {
    return request.dump();
  } catch (const json::type_error&) {
    TORCH_CHECK_VALUE(
        false, "chat template: template, messages and options must be UTF-8; got other bytes [SW0222]");
  }
}

}  // namespace

json render_request(const nlohmann::ordered_json& request, const RenderLimits& limits) {
  return json::parse(render(dump(request), limits));
}

}  // namespace shardwise::text
