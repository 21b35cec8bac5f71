/**
 * The only file that knows Plotly.
 *
 * @typedef {import("./plotly.d.ts").Figure} Figure
 * @typedef {import("./plotly.d.ts").PlotElement} PlotElement
 *
 * @typedef {object} Reader what the reader does with a plot
 * @property {(range: [number, number] | null) => void} onZoom the updates zoomed to; null: all again
 * @property {(row: number) => void} [onPick] a click on a heat map's row
 */

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

/**
 * Draw `figure` into `target`, or bring it up to date in place.
 * @param {HTMLElement} target
 * @param {Figure} figure
 * @param {[number, number] | null} range what the time axis shows, null for all
 * @param {Reader} reader
 */
export async function draw(target, figure, range, reader) {
  const isNew = !target.classList.contains("js-plotly-plot");
  const layout = range ? { ...figure.layout, xaxis: { ...figure.layout.xaxis, range } } : figure.layout;
  const plot = await window.Plotly.react(target, figure.data.map(toldByColumn), layout, CONFIG);
  if (isNew) listen(plot, reader);
  else pointAgain(target);
}

/**
 * A heat map whose columns are told hands that to each of its rows, as Plotly wants it.
 * @param {import("./plotly.d.ts").Trace} trace
 */
function toldByColumn(trace) {
  const columns = trace.meta?.columns;
  return columns && trace.z ? { ...trace, text: trace.z.map(() => columns) } : trace;
}

/**
 * Show another part of the time axis at once, before the data for it has come.
 * @param {HTMLElement} target
 * @param {[number, number]} range
 */
export function show(target, range) {
  if (target.classList.contains("js-plotly-plot")) void window.Plotly.relayout(target, { "xaxis.range": [...range] });
}

/**
 * Move lines: new heights for the named traces.
 * @param {HTMLElement} target
 * @param {number[]} traces
 * @param {(number | null)[][]} heights
 */
export function moveLines(target, traces, heights) {
  if (target.classList.contains("js-plotly-plot")) void window.Plotly.restyle(target, { y: heights }, traces);
}

/**
 * The plot as a PNG, at twice its size on the page, as a data address.
 * @param {HTMLElement} target
 * @returns {Promise<string>}
 */
export function image(target) {
  const { clientWidth: width, clientHeight: height } = target;
  return window.Plotly.toImage(target, { format: "png", width: width * 2, height: height * 2 });
}

/** @param {HTMLElement} target */
export function clear(target) {
  if (target.classList.contains("js-plotly-plot")) window.Plotly.purge(target);
}

/** @type {{target: HTMLElement, x: number, y: number} | null} */
let pointer = null;

/**
 * Drawing takes the hover text away until the pointer moves: move it for the reader, by nothing.
 * @param {HTMLElement} target
 */
function pointAgain(target) {
  if (pointer?.target !== target) return;
  const { x, y } = pointer;
  const under = document.elementFromPoint(x, y);
  const move = { clientX: x, clientY: y, bubbles: true, view: window };
  if (under && target.contains(under)) under.dispatchEvent(new MouseEvent("mousemove", move));
}

/**
 * @param {PlotElement} plot
 * @param {Reader} reader
 */
function listen(plot, reader) {
  plot.addEventListener("pointermove", ({ clientX: x, clientY: y, pointerType }) => {
    pointer = pointerType === "mouse" ? { target: plot, x, y } : null;
  });
  plot.addEventListener("pointerleave", () => {
    pointer = null;
  });
  plot.on("plotly_relayout", (event) => {
    const from = event["xaxis.range[0]"];
    const to = event["xaxis.range[1]"];
    // Our own calls name the whole range at once; a reader's zoom names both ends.
    if (from !== undefined && to !== undefined) reader.onZoom([from, to]);
  });
  plot.on("plotly_doubleclick", () => reader.onZoom(null));
  plot.on("plotly_click", ({ points }) => {
    const index = points[0]?.pointIndex;
    if (Array.isArray(index)) reader.onPick?.(index[0]);
  });
}
