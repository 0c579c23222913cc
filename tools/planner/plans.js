// The rows that `shardwise plan` prints, out of the plans that `shardwise plan --json` prints: selected and formatted, not computed.

const kAxes = ["tp", "pp", "cp", "ep", "dp", "replicas"];

/// Returns the degrees of the axes, as [name, degree], in the program's order.
function axesOf(degrees) {
  return Object.entries(degrees).filter(([name]) => kAxes.includes(name));
}

/// Leaves out one rank of ep, and of generation one stage.
function axesText(degrees) {
  const optional = "replicas" in degrees ? ["pp", "ep"] : ["ep"];
  return axesOf(degrees).filter(([name, degree]) => !optional.includes(name) || degree > 1).flat().join(" ");
}

/// Returns the first plan of each combination of axes: plans are sorted by time.
function fastestOfAxes(plans) {
  const best = new Map();
  for (const plan of plans) {
    const axes = axesText(plan.degrees);
    if (!best.has(axes)) best.set(axes, plan);
  }
  return [...best.values()];
}

function byAxes(a, b) {
  const left = axesOf(a.degrees), right = axesOf(b.degrees);
  const i = left.findIndex(([, degree], at) => degree !== right[at][1]);
  return i < 0 ? 0 : left[i][1] - right[i][1];
}

/// Returns the refusals of combinations of axes that no plan has, one each: the one that needs the least memory.
function refusedAxes(report) {
  const fitting = new Set(report.plans.map((plan) => axesText(plan.degrees)));
  const least = new Map();
  for (const one of report.refused) {
    const axes = axesText(one.degrees), best = least.get(axes);
    if (!fitting.has(axes) && (!best || one.needed_bytes < best.needed_bytes)) least.set(axes, one);
  }
  return [...least.values()].sort(byAxes);
}

const gigabytes = (bytes, digits) => (bytes / 1e9).toFixed(digits);
const milliseconds = (seconds, digits) => (seconds * 1e3).toFixed(digits);

/// The columns of the table for each task: heading and cell.
const kTrainColumns = [
  ["sp", (p) => (p.degrees.sequence_parallel ? "yes" : "no")],
  ["zero", (p) => p.degrees.zero],
  ["micro-batch", (p) => p.degrees.micro_batch_size],
  ["chunks", (p) => p.degrees.chunks],
  ["recompute", (p) => p.degrees.recompute],
  ["GB", (p) => gigabytes(p.memory_bytes.total, 1)],
  ["states", (p) => gigabytes(p.memory_bytes.weights + p.memory_bytes.gradients + p.memory_bytes.optimizer, 1)],
  ["activations", (p) => gigabytes(p.memory_bytes.activations, 1)],
  ["step ms", (p) => milliseconds(p.seconds.total, 1)],
  ["compute", (p) => milliseconds(p.seconds.compute, 1)],
  ["tp", (p) => milliseconds(p.seconds.tensor_parallel, 1)],
  ["cp", (p) => milliseconds(p.seconds.context_parallel, 1)],
  ["ep", (p) => milliseconds(p.seconds.expert_parallel, 1)],
  ["pipeline", (p) => milliseconds(p.seconds.pipeline + p.seconds.bubble, 1)],
  ["dp", (p) => milliseconds(p.seconds.data_parallel, 1)],
  ["tokens/s", (p) => p.tokens_per_second.toFixed(0)],
  ["MFU", (p) => (100 * p.utilization).toFixed(1) + " %"],
  ["HFU", (p) => (100 * p.hardware_utilization).toFixed(1) + " %"],
];
const kInferColumns = [
  ["GB", (p) => gigabytes(p.memory_bytes.total, 2)],
  ["weights", (p) => gigabytes(p.memory_bytes.weights, 2)],
  ["cache", (p) => gigabytes(p.memory_bytes.cache, 2)],
  ["prompts ms", (p) => milliseconds(p.prompt_seconds.total, 2)],
  ["token ms", (p) => milliseconds(p.token_seconds.total, 2)],
  ["of it tp", (p) => milliseconds(p.token_seconds.tensor_parallel, 2)],
  ["of it ep", (p) => milliseconds(p.token_seconds.expert_parallel, 2)],
  ["of it pp", (p) => milliseconds(p.token_seconds.pipeline, 2)],
  ["pipelined ms", (p) => (p.pipelined_token_seconds === null ? "-" : milliseconds(p.pipelined_token_seconds, 2))],
  ["tokens/s", (p) => p.tokens_per_second.toFixed(1)],
  ["all texts s", (p) => p.seconds.toFixed(2)],
];

/// Returns whether the report is one of generation.
const isInference = (report) => "new_tokens" in report;

/// Returns the table of the plans: a list of rows of texts, the first of them the headings.
function tableOf(report) {
  const columns = isInference(report) ? kInferColumns : kTrainColumns;
  const plans = fastestOfAxes(report.plans);
  const axes = plans.length ? axesOf(plans[0].degrees).map(([name]) => name) : [];
  const headings = [...axes, ...columns.map(([heading]) => heading)];
  const rowOfPlan = (p) => [...axesOf(p.degrees).map(([, degree]) => degree), ...columns.map(([, cell]) => cell(p))].map(String);
  return withoutUnusedColumns([headings, ...plans.map(rowOfPlan)], isInference(report) ? kInferUnused : kTrainUnused);
}

/// The columns that are left out if every plan has one of these cells.
const kTrainUnused = {cp: ["1", "0.0"], ep: ["1", "0.0"]};
const kInferUnused = {pp: ["1"], ep: ["1"], "of it ep": ["0.00"], "of it pp": ["0.00"], "pipelined ms": ["-"]};

function withoutUnusedColumns([headings, ...rows], unused) {
  const isUsed = (heading, column) => !(heading in unused) || rows.some((row) => !unused[heading].includes(row[column]));
  const used = headings.map(isUsed);
  return [headings, ...rows].map((row) => row.filter((_, column) => used[column]));
}

/// The parts of bars, by the keys of the program's JSON without their total.
const partsOf = (object) => Object.entries(object).filter(([name]) => name !== "total");
