// The sections of the page, drawn from the data that the program inserted (runs_page.cpp).

const report = JSON.parse(document.getElementById("data").textContent);
const kRunColors = ["c1", "c3", "c5", "c4", "c6", "c2"];  // neighbors differ the most
const kLongRun = 200;  // steps
const kTimes = [["c1", "computing", "computing_ms"], ["c3", "communicating", "communicating_ms"], ["c4", "waiting", "waiting_ms"]];

/// The color of a run's curves; more runs than colors have dashes too.
const cssOf = (i) => kRunColors[i % kRunColors.length] + (i >= kRunColors.length ? " second" : "");
const legendOfRuns = () => legendOf(report.runs.map((run, i) => [cssOf(i), run.name]));
const inMegabytes = (bytes, digits = 2) => (bytes === null ? "-" : (bytes / 1e6).toFixed(digits));
const inMs = (ms) => (ms === null ? "-" : ms.toFixed(2));
const manyRuns = report.runs.length > 1;
const nameOf = (run, rest) => (manyRuns ? `${run.name}, ${rest}` : rest);
const allRanks = () => report.runs.flatMap((run) => run.ranks.map((rank, i) => [run, rank, i]));

function section(title, note, children, isWide = false) {
  return element("section", isWide ? {class: "wide"} : {}, element("h2", {}, title), element("p", {class: "note"}, note), ...children);
}

/// Running mean with Adam's bias correction.
function smoothed(points, weight = 0.9) {
  let mean = 0, norm = 0;
  return points.map(([x, y]) => {
    mean = weight * mean + (1 - weight) * y;
    norm = weight * norm + 1 - weight;
    return [x, mean / norm];
  });
}

const columnOf = (run, name) => run.steps.step.map((step, i) => [step, run.steps[name][i]]);

/// Returns the words for a step: each run's value in a column, and its validation loss.
function readoutOf(name, digits) {
  const values = report.runs.map((run) => new Map(columnOf(run, name)));
  return (step) => `step ${step}: ` + report.runs.map((run, i) =>
    (values[i].has(step) ? `${run.name} ${values[i].get(step).toFixed(digits)}` : "")).filter(Boolean).join(", ");
}

function overviewSection() {
  const rows = report.runs.map((run) => {
    const planned = run.planned && run.planned.computing_ms + run.planned.communicating_ms;
    const off = planned && run.measured_ms ? ` (${planned >= run.measured_ms ? "+" : ""}${(100 * (planned / run.measured_ms - 1)).toFixed(1)} %)` : "";
    return [run.name, run.ranks_text, `${(run.parameters / 1e6).toFixed(2)} M`,
      `${run.steps.step[0]} to ${run.steps.step.at(-1)}`, run.steps.loss.at(-1).toFixed(4),
      run.steps.validation.length ? run.steps.validation.at(-1)[1].toFixed(4) : "-", inMs(run.measured_ms), inMs(planned) + off,
      Math.round(run.tokens_per_second).toLocaleString("en")];
  });
  return section("Runs", report.runs.map((run) => nameOf(run, run.description)).join("; "),
    [tableOf(["run", "ranks", "parameters", "steps", "loss", "validation", "median step, ms", "planned", "tokens/s"], rows)], true);
}

function lossSection() {
  const curves = report.runs.flatMap((run, i) => {
    const points = columnOf(run, "loss"), isLong = points.length > kLongRun;
    return [{points, css: cssOf(i) + (isLong ? " faint" : "")}, ...(isLong ? [{points: smoothed(points), css: cssOf(i)}] : []),
      ...(run.steps.validation.length ? [{points: run.steps.validation, css: cssOf(i), dots: true}] : [])];
  });
  const losses = curves.flatMap(({points}) => points.map(([, loss]) => loss));
  const low = losses.reduce((a, b) => Math.min(a, b)), high = losses.reduce((a, b) => Math.max(a, b)), pad = 0.04 * (high - low) || 0.5;
  const chart = curvesOf(curves, {low: low - pad, high: high + pad, xLabel: "step", yLabel: "loss, nats per token", textAt: readoutOf("loss", 4)});
  const compared = report.differences.map(({name, steps, equal, largest}) => element("p", {class: "note difference"},
    `${name} and ${report.runs[0].name}: largest difference of ${steps} steps in common ${largest.toExponential(1)}; ${equal} are equal.`));
  return section("Loss", "By step; long runs as a running mean over each step's loss. Dots are validation.",
    [...chart, legendOfRuns(), ...compared]);
}

function stepSection() {
  const curves = report.runs.flatMap((run, i) => {
    const first = run.steps.step[0], last = run.steps.step.at(-1);
    const planned = run.planned && run.planned.computing_ms + run.planned.communicating_ms;
    return [{points: columnOf(run, "ms"), css: cssOf(i)}, ...(run.planned ? [{points: [[first, planned], [last, planned]], css: cssOf(i) + " planned"}] : [])];
  });
  const later = curves.flatMap(({points}) => (points.length > report.first_steps ? points.slice(report.first_steps) : points));
  const high = 1.1 * later.concat(curves.flatMap(({points}) => points.slice(-1))).reduce((most, [, ms]) => Math.max(most, ms), 0);
  return section("Time of each step", "Of the slowest rank. The dashed line is the planned time.",
    [...curvesOf(curves, {low: 0, high, xLabel: "step", yLabel: "ms", textAt: readoutOf("ms", 2)}), legendOfRuns()]);
}

function timeSection() {
  const partsOf = (times) => kTimes.filter(([, , key]) => times[key] > 0).map(([css, , key]) => [css, times[key]]);
  const rows = report.runs.flatMap((run) => [
    ...run.ranks.map((rank, i) => ({name: nameOf(run, `rank ${i}`), parts: partsOf(rank)})),
    ...(run.planned ? [{name: nameOf(run, "planned"), parts: partsOf(run.planned)}] : [])]);
  const hasWaits = allRanks().some(([, rank]) => rank.waiting_ms !== null);
  return section("Mean step", `Without the first ${report.first_steps} steps, by rank` + (hasWaits ? "." : "; communicating includes waiting."),
    [barsOf(rows, "ms", 2), legendOf(kTimes.slice(0, hasWaits ? 3 : 2).map(([css, name]) => [css, name]))]);
}

function memorySection() {
  const partsOf = (memory) => memory.map((bytes, i) => [`c${i + 1}`, bytes / 1e6]);
  const rows = allRanks().flatMap(([run, rank, i]) => [{name: nameOf(run, `rank ${i}`), parts: partsOf(rank.memory)},
    ...(rank.planned_memory ? [{name: "planned", parts: partsOf(rank.planned_memory)}] : [])]);
  const used = report.memory_classes.map((name, i) => [`c${i + 1}`, name]).filter((_, i) =>
    allRanks().some(([, rank]) => rank.memory[i] > 0 || (rank.planned_memory && rank.planned_memory[i] > 0)));
  return section("Peak memory", "Measured by the allocators, next to planned.", [barsOf(rows, "MB", 1), legendOf(used)]);
}

function sentSection() {
  const rows = allRanks().map(([run, rank, i]) => [nameOf(run, `rank ${i}`),
    ...[rank.sent_bytes, rank.planned_sent_bytes, rank.copied_bytes].map((bytes) => inMegabytes(bytes, 3))]);
  return section("Bytes of a step", "MB that a rank sends in the last step, next to planned, and copies in shared memory.",
    [tableOf(["", "sent", "planned", "copied"], rows)], true);
}

/// One rank's ops: a row for each depth below the step. The trace has one sum of waits for an op, drawn at its start.
function lanesOf(ops, end, depth) {
  const rects = ops.filter((op) => op[5] > 0).flatMap(([op, layer, start, duration, waiting, level, isCollective]) => {
    const rect = (css, x, width, note) => shape("rect", {x, width, y: 16 * (level - 1) + 1, height: 14, class: "part " + css}, shape("title", {}, note));
    const words = `${op}, ${layer}: ${(duration / 1e3).toFixed(3)} ms`;
    return [rect(isCollective ? "c3" : "c1", start + waiting, Math.max(0, duration - waiting), words),
      ...(waiting > 0 ? [rect("c4", start, waiting, `${words}, waiting ${(waiting / 1e3).toFixed(3)} ms`)] : [])];
  });
  return shape("svg", {viewBox: `0 0 ${end} ${16 * depth}`, preserveAspectRatio: "none", style: `height: ${16 * depth}px`, role: "img",
    "aria-label": "ops over time"}, ...rects);
}

function timelineSection() {
  const ranks = report.timeline, root = ranks[0].ops[0];
  const end = Math.max(...ranks.map(({ops}) => ops[0][2] + ops[0][3]));
  const depth = Math.max(1, ...ranks.flatMap(({ops}) => ops.map((op) => op[5])));
  const lanes = element("div", {class: "time"}, ...ranks.map(({ops}) => element("div", {style: "padding: 3px 0"}, lanesOf(ops, end, depth))));
  const zoom = element("input", {type: "range", min: 1, max: 40, value: 1, "aria-label": "zoom"});
  zoom.addEventListener("input", () => (lanes.style.width = `${100 * zoom.value}%`));
  const labels = element("div", {class: "label"}, ...ranks.map((_, i) => element("span", {}, `rank ${i}`)));
  const rows = ranks.map((rank, i) => [`rank ${i}`, ...[rank.ops[0][3], rank.computing_us, rank.communicating_us, rank.waiting_us, rank.host_us]
    .map((us) => (us / 1e3).toFixed(2))]);
  return section("Timeline", `The last ${root[0]} of the profile, ${(end / 1e3).toFixed(1)} ms. An op's waits are drawn at its start.`,
    [element("div", {class: "lanes"}, labels, element("div", {class: "scroll", tabindex: "0"}, lanes)),
      element("p", {class: "note"}, "zoom ", zoom), legendOf([["c1", "computing"], ["c3", "communicating"], ["c4", "waiting"]]),
      tableOf(["ms", "all", "computing", "communicating", "waiting", "host"], rows)], true);
}

function shapesOf(run) {
  const sizes = (list) => list.join(" × ");
  const rows = run.shapes.map(({name, parameters, shape: full, rank_shapes: shards}) => [
    name + (parameters > 1 ? ` (${parameters})` : ""), sizes(full),
    ...shards.map((shard) => element("td", sizes(shard) === sizes(full) ? {} : {class: "shard"}, sizes(shard)))]);
  const table = tableOf(["parameter", "full", ...run.ranks.map((_, i) => `rank ${i}`)], rows);
  return element("details", manyRuns ? {} : {open: ""}, element("summary", {}, run.name), table);
}

document.getElementById("report").append(overviewSection(), lossSection(), stepSection(), timeSection(), memorySection(), sentSection(),
  ...(report.timeline.length ? [timelineSection()] : []),
  section("Shards of every parameter", "Shapes; those of split parameters are in color. Layers with equal shapes share a row.",
    report.runs.map(shapesOf), true));
document.body.dataset.ready = "";
