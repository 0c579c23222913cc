// run_planner.js PLANNER.JS: reads requests, one a line, and prints the compiled planner's response to each, one a line.
const createPlanner = require(require("path").resolve(process.argv[2]));
const {readFileSync, writeSync} = require("fs");

// At once: a stream would keep all responses until the last request.
function print(text) {
  const bytes = Buffer.from(text);
  for (let begin = 0; begin < bytes.length;) begin += writeSync(1, bytes, begin);
}

createPlanner().then((module) => {
  for (const request of readFileSync(0, "utf8").split("\n").filter((line) => line)) {
    const bytes = module.lengthBytesUTF8(request) + 1, pointer = module._malloc(bytes);
    module.stringToUTF8(request, pointer, bytes);
    const response = module._shardwise_plan(pointer);
    print(module.UTF8ToString(response));
    module._free(pointer);
    module._free(response);
  }
});
