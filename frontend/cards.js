/**
 * A chart in its frame: heading, legend, what one point stands for, when it was drawn, and the table behind it.
 *
 * @typedef {import("./plotly.d.ts").Chart} Chart
 * @typedef {import("./plotly.d.ts").Key} Key
 * @typedef {import("./plot.js").Reader} Reader
 */

import { element, fill, setText, svg } from "./elements.js";
import { clock, plainNumber } from "./format.js";
import { clear, draw, image, moveLines, show } from "./plot.js";
import { csvOf, tableOf } from "./table.js";

// A reader scrolls no further; the CSV has all rows.
const MAX_TABLE_ROWS = 500;

export class ChartCard {
  /** @type {Chart | null} */ #chart = null;
  /** @type {Reader} */ #reader;
  #title = element("h2");
  #grain = element("p", { class: "grain" });
  #legend = element("div", { class: "legend", "aria-hidden": "true" });
  #plot = element("div", { class: "plot", role: "img" });
  #missing = element("p", { class: "missing" }, "Loading…");
  #drawn = element("span");
  #table = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers" });
  #details = element("details", {}, element("summary", {}, "Numbers"), this.#table);

  /**
   * @param {string} name
   * @param {string} title
   * @param {boolean} wide
   * @param {Reader} reader
   */
  constructor(name, title, wide, reader) {
    this.name = name;
    this.#reader = reader;
    this.#plot.append(this.#missing);
    const png = element("button", { type: "button", class: "link", onclick: () => void this.#savePng() }, "PNG");
    const csv = element("button", { type: "button", class: "link", onclick: () => this.#saveCsv() }, "CSV");
    this.root = element(
      "article",
      { class: wide ? "card wide" : "card", "data-chart": name },
      element("header", {}, element("div", {}, this.#title, this.#grain), this.#legend),
      this.#plot,
      element("footer", {}, this.#details, element("span", { class: "tools" }, this.#drawn, png, csv)),
    );
    this.#title.textContent = title;
    this.#details.addEventListener("toggle", () => this.#fillTable());
  }

  /** Pixels that the plot is wide: as many points are worth asking for. */
  get width() {
    return this.#plot.clientWidth;
  }

  /** @param {number} px */
  set height(px) {
    this.#plot.style.height = `${px}px`;
  }

  /**
   * @param {Chart} chart
   * @param {[number, number] | null} range
   * @param {number} now by the server's clock
   */
  async draw(chart, range, now) {
    this.#chart = chart;
    setText(this.#title, chart.title);
    setText(this.#grain, chart.grain);
    this.#drawLegend(chart.legend);
    this.root.toggleAttribute("data-empty", chart.missing !== null);
    this.#missing.hidden = chart.missing === null;
    setText(this.#missing, chart.missing ?? "");
    this.#plot.setAttribute("aria-label", `${chart.title}. ${chart.summary}`);
    if (chart.missing === null) await draw(this.#plot, chart.figure, range, this.#reader);
    else clear(this.#plot);
    if (chart.missing !== null && !this.#missing.isConnected) this.#plot.append(this.#missing);
    setText(this.#drawn, `drawn ${clock(now)}`);
    this.#fillTable();
  }

  /** @param {[number, number]} range */
  show(range) {
    show(this.#plot, range);
  }

  /**
   * @param {number[]} traces
   * @param {(number | null)[][]} heights
   */
  moveLines(traces, heights) {
    moveLines(this.#plot, traces, heights);
  }

  /** @param {Key[]} keys */
  #drawLegend(keys) {
    const text = JSON.stringify(keys);
    if (this.#legend.dataset.keys === text) return;
    this.#legend.dataset.keys = text;
    fill(this.#legend, ...keys.map((key) => element("span", {}, sign(key), key.label)));
  }

  #fillTable() {
    if (!this.#details.open || !this.#chart) return;
    const { columns, rows } = tableOf(this.#chart.figure);
    const shown = rows.slice(-MAX_TABLE_ROWS);
    const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
    const body = shown.map((row) => element("tr", {}, ...row.map((value) => element("td", {}, cellText(value)))));
    const cut = rows.length > shown.length && `The last ${shown.length} of ${rows.length} rows; the CSV has all. `;
    fill(
      this.#table,
      element("p", {}, cut, this.#chart.summary),
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)),
    );
  }

  async #savePng() {
    if (this.#chart?.missing === null) save(await image(this.#plot), `${this.#fileName()}.png`);
  }

  #saveCsv() {
    if (!this.#chart) return;
    const address = URL.createObjectURL(new Blob([csvOf(tableOf(this.#chart.figure))], { type: "text/csv" }));
    save(address, `${this.#fileName()}.csv`);
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  #fileName() {
    return `scalescope-${this.name}`.replace(/[^\w.-]+/g, "-");
  }
}

/**
 * @param {string} address
 * @param {string} name
 */
function save(address, name) {
  element("a", { href: address, download: name }).click();
}

/** @param {string | number | null} value */
function cellText(value) {
  return typeof value === "number" ? (Number.isInteger(value) ? String(value) : plainNumber(value)) : (value ?? "");
}

/** @param {Key} key */
function sign({ colour, mark }) {
  const box = { width: 18, height: 10, viewBox: "0 0 18 10" };
  if (mark === "up" || mark === "down") {
    const points = mark === "up" ? "9,1 14,9 4,9" : "9,9 14,1 4,1";
    return svg("svg", box, svg("polygon", { points, fill: colour }));
  }
  if (mark === "cross") {
    return svg("svg", box, svg("path", { d: "M5.5,1.5l7,7M12.5,1.5l-7,7", stroke: colour, "stroke-width": 2 }));
  }
  if (mark === "point" || mark === "ring") {
    const inside = mark === "point" ? colour : "none";
    return svg("svg", box, svg("circle", { cx: 9, cy: 5, r: 3.5, fill: inside, stroke: colour, "stroke-width": 1.5 }));
  }
  const dashes = { line: "none", dash: "5 3", dot: "2 2", band: "none", area: "none" }[mark];
  const width = mark === "band" || mark === "area" ? 8 : 2;
  const line = { x1: 0, x2: 18, y1: 5, y2: 5, stroke: colour, "stroke-width": width, "stroke-dasharray": dashes };
  return svg("svg", box, svg("line", mark === "band" ? { ...line, "stroke-opacity": 0.25 } : line));
}
