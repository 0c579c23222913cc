// Charts as SVG: curves with axes, and stacked bars. Colors are classes of page.css.

const kWidth = 640, kHeight = 300;
const kEdges = {left: 64, right: 14, top: 12, bottom: 40};
const kMostPoints = 1500;  // of a curve; a longer one is drawn by its extremes

/// Returns an element of HTML; `attributes` may be an object, children elements and texts.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The parser's own, so that the page contains no address.
const kNamespace = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(kNamespace, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const text = (x, y, words, anchor = "middle", css = "") => shape("text", {x, y, "text-anchor": anchor, class: css}, words);
const drawing = (height, label, ...children) =>
  shape("svg", {viewBox: `0 0 ${kWidth} ${height}`, role: "img", "aria-label": label}, ...children);

/// Returns about `count` round numbers within [low, high].
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/// Maps [low, high] to pixels.
function axisOf(low, high, begin, end, count) {
  const span = high - low || 1;
  return {at: (value) => begin + ((value - low) / span) * (end - begin), ticks: ticks(low, low + span, count)};
}

/// Returns the points that a curve of some hundred pixels needs: the lowest and the highest of every few.
function thinned(points) {
  if (points.length <= kMostPoints) return points;
  const size = Math.ceil((2 * points.length) / kMostPoints), kept = [];
  for (let i = 0; i < points.length; i += size) {
    const some = points.slice(i, i + size);
    const low = some.reduce((a, b) => (b[1] < a[1] ? b : a)), high = some.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low[0] < high[0] ? [low, high] : low[0] > high[0] ? [high, low] : [low]));
  }
  return kept;
}

function gridOf(x, y, xLabel, yLabel) {
  const right = kWidth - kEdges.right, bottom = kHeight - kEdges.bottom;
  return [
    ...y.ticks.flatMap((value) => [
      shape("line", {x1: kEdges.left, x2: right, y1: y.at(value), y2: y.at(value), class: "grid"}),
      text(kEdges.left - 8, y.at(value) + 4, value.toLocaleString("en"), "end")]),
    ...x.ticks.map((value) => text(x.at(value), bottom + 18, value.toLocaleString("en"))),
    text((kEdges.left + right) / 2, kHeight - 4, xLabel),
    shape("text", {transform: `translate(14 ${bottom / 2}) rotate(-90)`, "text-anchor": "middle"}, yLabel)];
}

const lineOf = (x, y, points, css) => shape("polyline", {class: "line " + css,
  points: thinned(points).map(([a, b]) => `${x.at(a).toFixed(1)},${y.at(b).toFixed(1)}`).join(" ")});
const dotsOf = (x, y, points, css) => points.map(([a, b]) => shape("circle", {class: "dot " + css, cx: x.at(a), cy: y.at(b), r: 3}));

/// Shows the values of `curves` at the step under the pointer, in a line below the chart.
function addReadout(chart, x, steps, textAt) {
  const readout = element("p", {class: "readout"});
  const cursor = shape("line", {y1: kEdges.top, y2: kHeight - kEdges.bottom, class: "cursor", visibility: "hidden"});
  chart.append(cursor);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * kWidth;
    const step = steps.reduce((a, b) => (Math.abs(x.at(b) - at) < Math.abs(x.at(a) - at) ? b : a));
    cursor.setAttribute("x1", x.at(step));
    cursor.setAttribute("x2", x.at(step));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = textAt(step);
  });
  return [chart, readout];
}

/// Draws `curves`, {points, css, dots}, with y from `low` to `high`; `textAt` returns the words for a step.
function curvesOf(curves, {low, high, xLabel, yLabel, textAt}) {
  const steps = [...new Set(curves.flatMap((curve) => curve.points.map(([step]) => step)))].sort((a, b) => a - b);
  const x = axisOf(steps[0], steps.at(-1), kEdges.left, kWidth - kEdges.right, 6);
  const y = axisOf(low, high, kHeight - kEdges.bottom, kEdges.top, 5);
  const {left, top} = kEdges, width = kWidth - left - kEdges.right, height = kHeight - top - kEdges.bottom;
  const inside = shape("svg", {x: left, y: top, width, height, viewBox: `${left} ${top} ${width} ${height}`},  // clips
    ...curves.flatMap(({points, css, dots}) => (dots ? dotsOf(x, y, points, css) : [lineOf(x, y, points, css)])));
  return addReadout(drawing(kHeight, yLabel, ...gridOf(x, y, xLabel, yLabel), inside), x, steps, textAt);
}

/// Draws horizontal stacked bars of `rows`, {name, parts: [[css, value]]}.
function barsOf(rows, unit, digits) {
  const pitch = 30, left = 190, total = ({parts}) => parts.reduce((sum, [, value]) => sum + value, 0);
  const scale = (kWidth - left - 100) / (Math.max(...rows.map(total)) || 1);
  const body = rows.flatMap((row, i) => {
    let x = left;
    const rects = row.parts.map(([css, value]) => {
      const rect = shape("rect", {x, y: 4 + i * pitch, width: value * scale, height: 22, class: "part " + css},
        shape("title", {}, `${value.toFixed(digits)} ${unit}`));
      x += value * scale;
      return rect;
    });
    return [text(left - 10, i * pitch + 20, row.name, "end"), ...rects,
      text(x + 8, i * pitch + 20, `${total(row).toFixed(digits)} ${unit}`, "start", "total")];
  });
  return drawing(8 + pitch * rows.length, unit, ...body);
}

const legendOf = (entries) => element("p", {class: "legend"},
  ...entries.map(([css, name]) => element("span", {}, element("i", {class: css}), name)));

function tableOf(heads, rows) {
  const cell = (value) => (value instanceof Node ? value : element("td", {}, value));
  return element("div", {class: "scroll", tabindex: "0"}, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", {scope: "col"}, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell))))));
}
