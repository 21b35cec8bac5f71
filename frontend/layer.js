/** One layer: its exponent histogram over time, a slider that moves the scale, and what else is known of it. */

import { ChartCard } from "./cards.js";
import { byId, element, fill, setRaised, setText } from "./elements.js";
import { aboutText } from "./facts.js";
import { fetchJson, root, runPath } from "./fetching.js";
import { count, octaves, percent } from "./format.js";
import { showProbe } from "./probe.js";
import { RunPage } from "./runpage.js";
import { levelOf, limitLine, whatIf } from "./whatif.js";

/** @typedef {import("./whatif.js").Reading} Reading */

const LIMITS = [16, -14, -25];
const LIMIT_TRACES = [1, 2, 3];
const LABEL_TRACES = [4, 5, 6];

const parameter = document.documentElement.dataset.parameter ?? "";
const slider = /** @type {HTMLInputElement} */ (byId("scale"));
/** @type {Reading[]} */
let readings = [];
/** @type {number | null} */
let inForce = null;
/** @type {(number | null)[]} */
let columns = [];
/** @type {string | null} */
let format = null;

const page = new RunPage({
  load,
  onRange: (range) => {
    for (const each of [card, ...lines.values()]) each.show([range[0] - 0.5, range[1] - 0.5]);
  },
});
/** @type {Map<string, ChartCard>} */
const lines = new Map();
const probe = element("article", { class: "card wide" });
const card = new ChartCard("histogram", "Exponents of the scaled gradient", true, page.reader);
byId("charts").append(card.root);
byId("lines").append(probe);

slider.addEventListener("input", () => {
  page.view = { ...page.view, octaves: Number(slider.value) };
  answer();
});
slider.addEventListener("change", () => page.keepAddress());
byId("scale-reset").addEventListener("click", () => {
  page.view = { ...page.view, octaves: null };
  page.keepAddress();
  slider.value = String(recorded());
  answer();
});
page.start();
void loadRun();

async function load() {
  const query = page.query(Math.max(card.width, 200));
  const path = runPath(page.run, `/figures/layers/${encodeURIComponent(parameter)}`);
  const found = await fetchJson(`${path}?${query}`);
  return {
    step: found.step,
    draw: async () => {
      readings = found.readings;
      inForce = found.scale;
      columns = found.chart.figure.layout.meta?.octaves ?? [];
      format = found.parameter.compute_format;
      await card.draw(found.chart, page.axis, page.now);
      showParameter(found.parameter, found.names);
      showSlider();
      for (const chart of /** @type {import("./plotly.d.ts").Chart[]} */ (found.lines)) {
        await lineCard(chart).draw(chart, page.axis, page.now);
      }
      showProbe(probe, found.probe, format);
    },
  };
}

/** @param {import("./plotly.d.ts").Chart} chart */
function lineCard({ name, title }) {
  const known = lines.get(name);
  if (known) return known;
  const made = new ChartCard(name, title, false, page.reader);
  lines.set(name, made);
  probe.before(made.root);
  return made;
}

function showSlider() {
  byId("what-if").hidden = readings.length === 0;
  if (readings.length === 0) return;
  const levels = readings.map(levelOf);
  slider.min = String(Math.min(...levels.map(Math.floor)) - 24);
  slider.max = String(Math.max(...levels.map(Math.ceil)) + 16);
  slider.value = String(page.view.octaves ?? recorded());
  answer();
}

/** log2 of the scale in force, in a range the reader chose of that of its last usual update, as the slider has it. */
function recorded() {
  if (page.view.range === null && inForce !== null && inForce > 0) return Math.round(Math.log2(inForce));
  const last = readings.findLast((reading) => reading.periodic) ?? readings.at(-1);
  return last ? Math.round(levelOf(last)) : 0;
}

/** Everything that follows from the slider's place. */
function answer() {
  const level = Number(slider.value);
  const found = whatIf(readings, level);
  const text = `2^${level} = ${level >= 0 && level < 53 ? count(2 ** level) : (2 ** level).toExponential(2)}`;
  setRaised(byId("scale-value"), text);
  slider.setAttribute("aria-valuetext", `2 to the power of ${level}`);
  byId("scale-reset").hidden = page.view.octaves === null;
  fill(
    byId("answers"),
    ...fact("would flush to zero", between(found.flush, percent), "of the non-zero elements"),
    ...fact("would overflow", between(found.overflow, count), `of ${count(found.elements)} finite non-zero elements`),
    ...fact("headroom", found.headroom === null ? "–" : octaves(found.headroom), "from the largest value to 65504"),
  );
  setText(byId("exactness"), `${exactness(level)} Rests on ${count(found.samples)} samples${stretch()}.`);
  drawLimits();
}

function drawLimits() {
  const moved = LIMITS.map((limit) => limitLine(columns, page.view.octaves, limit));
  // A name stands above its line, however the line steps below it.
  const names = moved.map((line) => [Math.max(...line.slice(-Math.ceil(line.length / 4)))]);
  card.moveLines([...LIMIT_TRACES, ...LABEL_TRACES], [...moved, ...names]);
}

/** @param {number} level */
function exactness(level) {
  if (format === "fp32" || format === "bf16") {
    return `Exact bounds: this gradient is computed in ${format}, so nothing had flushed before it was measured.`;
  }
  const highest = Math.max(...readings.map(levelOf));
  const bound = level >= highest ? " Here it is a lower bound." : "";
  const known =
    format === "fp16" ? "is computed in fp16" : "is taken to be computed in fp16, its format is not known yet";
  return `An estimate: this gradient ${known}, so what had flushed at its own scale is zero already.${bound}`;
}

function stretch() {
  const steps = readings.map((reading) => reading.step);
  return steps.length ? ` of updates ${count(Math.min(...steps))} to ${count(Math.max(...steps))}` : "";
}

/**
 * @param {import("./whatif.js").Bounds} bounds
 * @param {(value: number) => string} format
 */
function between({ low, high }, format) {
  return low === high || format(low) === format(high) ? format(low) : `${format(low)} to ${format(high)}`;
}

/**
 * @param {string} name
 * @param {string} value
 * @param {string} detail
 */
function fact(name, value, detail) {
  return [element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, detail)))];
}

/**
 * @param {{name: string, module: string, shape: number[], dtype: string, numel: number, compute_format: string | null}} found
 * @param {string[]} names
 */
function showParameter(found, names) {
  const shape = found.shape.length > 1 ? `${found.shape.join(" × ")} · ` : "";
  const elements = `${count(found.numel)} element${found.numel === 1 ? "" : "s"}`;
  const module = found.module ? ` · in ${found.module}` : "";
  const computed = found.compute_format ? ` · computed in ${found.compute_format}` : "";
  setText(byId("parameter-about"), `${shape}${elements} · ${found.dtype}${computed}${module}`);
  const at = names.indexOf(found.name);
  link("previous", names[at - 1]);
  link("next", names[at + 1]);
}

/**
 * @param {string} id
 * @param {string | undefined} name
 */
function link(id, name) {
  const target = /** @type {HTMLAnchorElement} */ (byId(id));
  target.hidden = name === undefined;
  if (name === undefined) return;
  target.href = `${root}/runs/${encodeURIComponent(page.run)}/layers/${encodeURIComponent(name)}${location.search}`;
  target.title = name;
}

async function loadRun() {
  const run = await fetchJson(runPath(page.run)).catch(() => null);
  if (!run) return;
  page.learn(run);
  setText(byId("name"), run.name);
  setText(byId("about"), aboutText(run, page.now));
}
