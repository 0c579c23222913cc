// The controls: one for each flag. A control without a value leaves the flag to the program, whose default it shows.

/// Kinds: choice; power, a slider of powers of two from 2^from to 2^to beside a number; range, a slider of numbers; pin, a power of
/// two or any; on, a switch; words, separated by spaces. `task`: the only task that has the flag; `needs`: the flag that it goes with; `shown`: the report's
/// value, or a number that the empty control stands for.
const kFields = [
  {group: "What", flag: "task", label: "Task", kind: "choice", values: [["train", "training"], ["infer", "generation"]], fixed: true},
  {group: "What", flag: "model", label: "Model", kind: "choice", values: [], file: "config.json", fixed: true},
  {group: "What", flag: "dtype", label: "Dtype", kind: "choice", values: [["", "bf16"], ["float32", "fp32"]]},
  {group: "What", flag: "seq-len", label: "Sequence, tokens", kind: "power", from: 7, to: 17, task: "train", shown: "sequence_length"},
  {group: "What", flag: "batch-size", label: "Batch, sequences", kind: "power", from: 0, to: 14, shown: "batch_size"},
  {group: "What", flag: "prompt-tokens", label: "Prompt, tokens", kind: "power", from: 4, to: 17, task: "infer", shown: "prompt_tokens"},
  {group: "What", flag: "new-tokens", label: "New tokens", kind: "power", from: 4, to: 15, task: "infer", shown: "new_tokens"},
  {group: "Where", flag: "machine", label: "Machine", kind: "choice", values: [], file: "machine.json", fixed: true},
  {group: "Where", flag: "ranks", label: "Ranks", kind: "power", from: 0, to: 14, shown: "ranks"},
  {group: "Where", flag: "min-gpus", label: "the fewest ranks that fit", kind: "on", replaces: "ranks"},
  {group: "Where", flag: "memory-cap", label: "Memory cap, GB", kind: "range", from: 4, to: 192, step: 4, shown: "usable_bytes"},
  {group: "How", flag: "tp", label: "Tensor parallel", kind: "pin", to: 6},
  {group: "How", flag: "cp", label: "Context parallel", kind: "pin", to: 6, task: "train"},
  {group: "How", flag: "pp", label: "Pipeline stages", kind: "pin", to: 6},
  {group: "How", flag: "dp", label: "Data parallel", kind: "pin", to: 14, task: "train"},
  {group: "How", flag: "ep", label: "Expert parallel", kind: "pin", to: 8},
  {group: "How", flag: "micro-batch-size", label: "Micro-batch", kind: "pin", to: 8, task: "train"},
  {group: "How", flag: "zero", label: "ZeRO stage", kind: "choice", task: "train",
    values: [["", "any"], ["0", "0: splits nothing"], ["1", "1: optimizer"], ["2", "2: and gradients"], ["3", "3: and weights"]]},
  {group: "How", flag: "recompute", label: "Recompute", kind: "choice", task: "train",
    values: [["", "any"], ["none", "none"], ["selective", "selective"], ["full", "full"]]},
  {group: "How", flag: "gradient-dtype", label: "Main gradients", kind: "choice", task: "train",
    values: [["", "float32"], ["bfloat16", "bfloat16"]]},
  {group: "How", flag: "split-batch", label: "two halves of each micro-batch in turn", kind: "on", task: "train"},
  {group: "How", flag: "freeze", label: "Frozen tensors", kind: "words", task: "train", hint: "such as model.layers.0.*"},
  {group: "How", flag: "overlap", label: "Collectives of TP", kind: "choice", task: "train",
    values: [["", "beside products"], ["off", "alone"]]},
  {group: "How", flag: "algorithm", label: "Collectives that were not measured", kind: "choice",
    values: [["", "as the machine's"], ["ring", "ring"], ["two-shot", "two-shot"], ["tree", "tree"]]},
  {group: "How", flag: "quantize", label: "Weights", kind: "choice", task: "infer",
    values: [["", "as in the model"], ["int8", "int8"], ["int4", "int4"]]},
  {group: "How", flag: "group-size", label: "Features per scale", kind: "choice", task: "infer", needs: "quantize",
    values: [["", "default"], ["32", "32"], ["64", "64"], ["128", "128"]]},
  {group: "How", flag: "head", label: "Embedding and head", kind: "choice", task: "infer", needs: "quantize",
    values: [["", "int8"], ["int4", "int4"], ["none", "not quantized"]]},
  {group: "How", flag: "kv-cache-dtype", label: "Cached keys and values", kind: "choice", task: "infer",
    values: [["", "as weights"], ["int8", "int8"]]},
];

/// Returns an element with attributes; a function is a listener, and `null` no attribute.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function choiceControl(field, change) {
  const values = field.file ? [...field.values, [field.file, "a " + field.file + " …"]] : field.values;
  const select = element("select", {id: field.flag, change: () => change(field.flag, select.value)},
    ...values.map(([value, text]) => element("option", {value}, text)));
  return [select];
}

/// The slider holds an exponent, the number beside it any value.
function sliderControl(field, change) {
  const valueOf = (position) => String(field.kind === "power" ? 2 ** position : position);
  const number = element("input", {id: field.flag, type: "number", min: "1", step: field.kind === "power" ? "1" : "any",
    input: () => change(field.flag, number.value)});
  const slider = element("input", {type: "range", min: field.from, max: field.to, step: field.step || 1, "aria-label": field.label,
    input: () => change(field.flag, valueOf(Number(slider.value)))});
  return [element("span", {class: "slider"}, slider, number)];
}

function pinControl(field, change) {
  const powers = Array.from({length: field.to + 1}, (_, i) => String(2 ** i));
  return choiceControl({...field, values: [["", "any"], ...powers.map((power) => [power, power])]}, change);
}

function switchControl(field, change) {
  const box = element("input", {id: field.flag, type: "checkbox", change: () => change(field.flag, box.checked ? true : "")});
  return [box];
}

function wordsControl(field, change) {
  const text = element("input", {id: field.flag, type: "text", spellcheck: "false", placeholder: field.hint,
    input: () => change(field.flag, text.value)});
  return [text];
}

function fileControl(field, changeFile) {
  const text = element("textarea", {rows: "6", spellcheck: "false", "aria-label": field.file, placeholder: "the text of a " + field.file,
    input: () => changeFile(field.file, text.value)});
  const chosen = element("input", {type: "file", accept: ".json", "aria-label": "choose a " + field.file,
    change: async () => { text.value = await chosen.files[0].text(); changeFile(field.file, text.value); }});
  return element("div", {class: "file", "data-file": field.file, hidden: true}, text, chosen);
}

const kControls = {choice: choiceControl, power: sliderControl, range: sliderControl, pin: pinControl, on: switchControl, words: wordsControl};

function rowOf(field, change, changeFile) {
  const row = element("div", {class: "field " + field.kind, "data-flag": field.flag},
    element("label", {for: field.flag}, field.label), ...kControls[field.kind](field, change));
  if (field.file) row.append(fileControl(field, changeFile));
  return row;
}

/// Fills `form`. `change(flag, value)` is called with "" for a control without a value.
function buildForm(form, change, changeFile) {
  for (const group of new Set(kFields.map((field) => field.group))) {
    const rows = kFields.filter((field) => field.group === group).map((field) => rowOf(field, change, changeFile));
    form.append(element("fieldset", {}, element("legend", {}, group), ...rows));
  }
  form.append(element("p", {id: "others"}));
}

/// Adds a value that no option has, such as a degree of three.
function withOption(select, value) {
  if (![...select.options].some((option) => option.value === value)) select.append(element("option", {value}, value));
  select.value = value;
}

function showSlider(row, field, value, shown) {
  const [slider, number] = row.querySelectorAll("input");
  if (document.activeElement !== number) number.value = value;
  number.placeholder = shown;
  const effective = Number(value || shown);
  slider.value = field.kind === "power" ? Math.round(Math.log2(effective || 1)) : effective;
}

/// Returns what an empty control stands for: the value that the report has.
function shownValue(field, report) {
  if (!report) return "";
  if (field.shown === "usable_bytes") return gigabytes(report.usable_bytes, 1);
  if (field.flag === "batch-size" && isInference(report)) return String(report.texts);
  return String(report[field.shown]);
}

function showWords(input, value) {
  if (document.activeElement !== input) input.value = value;
}

function showField(form, field, state, report) {
  const row = form.querySelector(`[data-flag="${field.flag}"]`), value = state.flags[field.flag] ?? "";
  const task = state.flags.task || "train";
  row.hidden = Boolean((field.task && field.task !== task) || (field.needs && !state.flags[field.needs]));
  if (field.kind === "on") row.querySelector("input").checked = value === true;
  else if (field.kind === "words") showWords(row.querySelector("input"), value);
  else if (field.kind === "power" || field.kind === "range") showSlider(row, field, value, shownValue(field, report));
  else withOption(row.querySelector("select"), value || (field.fixed ? kDefaultFlags[field.flag] : ""));
  if (field.file) showFile(row, state.files[field.file] || "", value === field.file);
}

function showFile(row, text, isShown) {
  row.querySelector(".file").hidden = !isShown;
  const area = row.querySelector("textarea");
  if (document.activeElement !== area) area.value = text;
}

/// Lists the flags that have no control, such as --why, which a link may name.
function showOthers(form, state, change) {
  const others = Object.entries(state.flags).filter(([name]) => !kFields.some((field) => field.flag === name));
  const labels = others.map(([name, value]) => element("button", {type: "button", title: "remove", click: () => change(name, "")},
    `--${name}${value === true ? "" : " " + value} ×`));
  form.querySelector("#others").replaceChildren(...labels);
}

/// Sets every control to the state. `report` is the last one, or null.
function showForm(form, state, report, change) {
  for (const field of kFields) showField(form, field, state, report);
  showOthers(form, state, change);
}
