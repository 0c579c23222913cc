// The worker of the page: computes one request after the other. `createPlanner` is emscripten's.
const planner = createPlanner();

/// Calls an exported function that returns a text, which the caller frees.
function textOf(module, pointer) {
  const text = module.UTF8ToString(pointer);
  module._free(pointer);
  return text;
}

function respond(module, request) {
  const bytes = module.lengthBytesUTF8(request) + 1;
  const pointer = module._malloc(bytes);
  module.stringToUTF8(request, pointer, bytes);
  const response = textOf(module, module._shardwise_plan(pointer));
  module._free(pointer);
  return response;
}

onmessage = async (event) => {
  try {
    const module = await planner;
    const response = event.data === null ? textOf(module, module._shardwise_choices()) : respond(module, event.data);
    postMessage(response);
  } catch (error) {
    postMessage(JSON.stringify({error: "this browser cannot run the planner: " + error}));
  }
};
