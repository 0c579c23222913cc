// What the page shows: {flags: {name: text, or true for a switch}, files: {name: text}}, as a request of planner.cpp, as the
// address's hash, and as a command line.

const kDefaultFlags = {task: "train", model: "llama-3.1-8b", machine: "h100", ranks: "8"};

/// Returns the flags without those of the other task, and of --quantize without it, which the program would refuse.
function flagsOfTask(flags) {
  const task = flags.task || "train";
  const belongs = (name) => {
    const field = kFields.find((one) => one.flag === name);
    return !field || ((!field.task || field.task === task) && (!field.needs || flags[field.needs]));
  };
  return Object.fromEntries(Object.entries(flags).filter(([name, value]) => belongs(name) && value !== ""));
}

/// Returns the texts that the flags name.
function filesOf(state) {
  const named = Object.values(state.flags);
  return Object.fromEntries(Object.entries(state.files).filter(([name]) => named.includes(name)));
}

/// Returns the words of a flag's value: several, separated by spaces, only of a control of that kind.
function wordsOf(name, value) {
  return kFields.some((field) => field.flag === name && field.kind === "words") ? value.trim().split(/\s+/) : [value];
}

function requestOf(state) {
  const flags = Object.entries(flagsOfTask(state.flags)).map(([name, value]) => [name, value === true ? value : wordsOf(name, value)]);
  return JSON.stringify({flags: Object.fromEntries(flags), files: filesOf(state)});
}

function hashOf(state) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(flagsOfTask(state.flags))) parameters.set(name, value === true ? "" : value);
  for (const [name, text] of Object.entries(filesOf(state))) parameters.set("file:" + name, text);
  return "#" + parameters;
}

function stateOfHash(hash) {
  const state = {flags: {}, files: {}};
  for (const [name, value] of new URLSearchParams(hash.slice(1))) {
    if (name.startsWith("file:")) state.files[name.slice("file:".length)] = value;
    else state.flags[name] = value === "" ? true : value;
  }
  return state;
}

/// Returns the state of the address, else the one that `shardwise plan --html` wrote into the page, else the default.
function startState() {
  if (location.hash.length > 1) return stateOfHash(location.hash);
  const start = JSON.parse(document.getElementById("start").textContent);
  return start || {flags: {...kDefaultFlags}, files: {}};
}

function quoted(word) {
  return /^[\w./:=-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
}

function commandLine(state) {
  const words = ["shardwise", "plan"];
  for (const [name, value] of Object.entries(flagsOfTask(state.flags))) {
    words.push("--" + name);
    if (value !== true) words.push(...wordsOf(name, value).map(quoted));
  }
  return words.join(" ");
}
