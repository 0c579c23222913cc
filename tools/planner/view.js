// What the page shows of a report: the fastest plan, the table, the bars of memory and time, and the refusals.

const kRows = 10;  // shown of a list until "show all" is pressed

const kMemoryNames = {weights: "weights", gradients: "gradients", optimizer: "optimizer", activations: "activations",
  cache: "keys and values", buffers: "buffers"};
const kTimeNames = {compute: "compute", tensor_parallel: "tensor parallel",
  context_parallel: "context parallel", expert_parallel: "expert parallel", pipeline: "between stages", bubble: "bubble",
  data_parallel: "data parallel", optimizer: "optimizer"};
/// The colors of the parts: those of memory and of time are apart.
const kColors = new Map([
  [kMemoryNames, {weights: 1, gradients: 2, cache: 2, optimizer: 3, activations: 4, buffers: 5}],
  [kTimeNames, {compute: 1, tensor_parallel: 2, context_parallel: 8, expert_parallel: 7, pipeline: 3, bubble: 6, data_parallel: 4, optimizer: 5}],
]);
const nameOf = (names, part) => names[part] || part.replaceAll("_", " ");
const colorOf = (part, names) => "c" + (kColors.get(names)[part] || 7);

function figure(value, unit, label) {
  return element("div", {class: "figure"}, element("strong", {}, value), unit ? " " + unit : "", element("span", {}, label));
}

function summaryFigures(report) {
  const best = report.plans[0];
  const memory = figure(gigabytes(best.memory_bytes.total, 1), "GB", `of ${gigabytes(report.usable_bytes, 1)} that a rank may fill`);
  if (isInference(report))
    return [figure(milliseconds(best.token_seconds.total, 2), "ms", "for a token of each text"),
      figure(best.tokens_per_second.toFixed(1), "tokens/s", "while they are generated"),
      figure(milliseconds(best.prompt_seconds.total, 0), "ms", "until all have their first token"), memory];
  return [figure(milliseconds(best.seconds.total, 0), "ms", "for a step"),
    figure(best.tokens_per_second.toFixed(0), "tokens/s", "of all ranks"),
    figure((100 * best.utilization).toFixed(1), "%", "of the peak rate (MFU)"), memory];
}

function summaryOf(report) {
  const head = `${report.model}, ${(report.parameters / 1e9).toFixed(2)}B parameters${report.format ? " in " + report.format : ""}, ` +
    `${report.ranks} × ${report.machine}`;
  if (!report.plans.length)
    return [element("h2", {}, "No split fits"), element("p", {}, head + ". Each is refused below, with what it would need.")];
  return [element("h2", {}, "Fastest: " + axesText(report.plans[0].degrees)), element("p", {}, head),
    element("div", {class: "figures"}, ...summaryFigures(report))];
}

const isWhole = (section) => "all" in section.dataset;
const shownOf = (list, section) => (isWhole(section) ? list : list.slice(0, kRows));

/// Returns "show all" for a list that is longer than kRows, or nothing. The attribute data-all of `section` says what is shown.
function moreButton(section, count, again) {
  if (count <= kRows) return [];
  const press = () => {
    section.toggleAttribute("data-all");
    again();
  };
  return [element("button", {type: "button", click: press}, isWhole(section) ? `show ${kRows}` : `show all ${count}`)];
}

function tableSection(report, section, again) {
  const [headings, ...rows] = tableOf(report);
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...headings.map((heading) => element("th", {scope: "col"}, heading)))),
    element("tbody", {}, ...shownOf(rows, section).map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))))));
  const note = isInference(report) ? `${report.plans.length} plans fit, ${report.refused.length} do not.`
    : `The fastest plan of each combination of degrees. ${report.plans.length} plans fit, ${report.refused.length} do not.`;
  return [element("h2", {}, "Plans"), element("p", {}, note), element("div", {class: "wide", tabindex: "0"}, table),
    ...moreButton(section, rows.length, again)];
}

function barOf(parts, names, scale, textOf) {
  return parts.filter(([, value]) => value > 0).map(([part, value]) =>
    element("span", {class: colorOf(part, names), style: `width:${(100 * value) / scale}%`,
      title: `${nameOf(names, part)}: ${textOf(value)}`}));
}

/// Lists the parts that are in a row, in the order of `names`.
function legendOf(rows, names) {
  const used = new Set(rows.flatMap(({parts}) => parts.filter(([, value]) => value > 0).map(([part]) => part)));
  const ordered = [...new Set([...Object.keys(names), ...used])].filter((part) => used.has(part));
  return element("p", {class: "legend"}, ...ordered.map((part) =>
    element("span", {}, element("i", {class: colorOf(part, names)}), nameOf(names, part))));
}

function barRow({label, parts, total}, names, scale, textOf, limit) {
  const spoken = parts.filter(([, value]) => value > 0).map(([part, value]) => `${nameOf(names, part)} ${textOf(value)}`).join(", ");
  const mark = limit ? [element("b", {class: "limit", style: `left:${(100 * limit) / scale}%`})] : [];
  return element("div", {class: "row"}, element("span", {class: "label"}, label),
    element("span", {class: "bar", role: "img", "aria-label": `${label}: ${spoken}`}, ...barOf(parts, names, scale, textOf), ...mark),
    element("span", {class: "total"}, textOf(total)));
}

/// Returns stacked bars of `rows`, {label, parts, total}; `limit` is marked in each if it is given.
function chartOf(rows, names, textOf, limit) {
  const scale = Math.max(limit || 0, ...rows.map((row) => row.total)) * (limit ? 1.02 : 1);
  return [legendOf(rows, names), element("div", {class: "chart"}, ...rows.map((row) => barRow(row, names, scale, textOf, limit)))];
}

function memorySection(report, section, again) {
  const rows = fastestOfAxes(report.plans).map((p) =>
    ({label: axesText(p.degrees), parts: partsOf(p.memory_bytes), total: p.memory_bytes.total}));
  const gb = (bytes) => gigabytes(bytes, 1) + " GB";
  return [element("h2", {}, "Peak memory per rank"),
    element("p", {}, `The line is the limit: ${gb(report.usable_bytes)}.`),
    ...chartOf(shownOf(rows, section), kMemoryNames, gb, report.usable_bytes), ...moreButton(section, rows.length, again)];
}

/// Returns heading and bars of the times that `timeOf` takes of a plan.
function timeChart(heading, plans, timeOf, digits) {
  const rows = plans.map((p) => ({label: axesText(p.degrees), parts: partsOf(timeOf(p)), total: timeOf(p).total}));
  return [element("h2", {}, heading), ...chartOf(rows, kTimeNames, (seconds) => milliseconds(seconds, digits) + " ms")];
}

function timeSection(report, section, again) {
  const plans = fastestOfAxes(report.plans), shown = shownOf(plans, section);
  const charts = isInference(report)
    ? [...timeChart("Time of a token", shown, (p) => p.token_seconds, 2),
      ...timeChart("Time of the prompts", shown, (p) => p.prompt_seconds, 2)]
    : timeChart("Time of a step", shown, (p) => p.seconds, 1);
  return [...charts, ...moreButton(section, plans.length, again)];
}

function refusedSection(report, section, again) {
  const refused = refusedAxes(report);
  if (!refused.length) return [];
  const items = shownOf(refused, section).map((one) => element("li", {}, element("b", {}, axesText(one.degrees)), ": " + one.reason));
  return [element("h2", {}, "Refused"), element("ul", {}, ...items), ...moreButton(section, refused.length, again)];
}

const kSections = {summary: summaryOf, plans: tableSection, memory: memorySection, time: timeSection, refused: refusedSection};

function showSection(id, report) {
  const section = document.getElementById(id);
  const isShown = report.plans.length > 0 || id === "summary" || id === "refused";
  section.replaceChildren(...(isShown ? kSections[id](report, section, () => showSection(id, report)) : []));
}

/// Fills the sections. Without plans, only the summary and the refusals have something to show.
function showReport(report) {
  for (const id of Object.keys(kSections)) {
    document.getElementById(id).removeAttribute("data-all");
    showSection(id, report);
  }
}
