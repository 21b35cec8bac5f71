/** What an alert has been through, and what became of what was told of it: read when it is asked for, page by page. */

import { evidence } from "./alertstate.js";
import { element, fill } from "./elements.js";
import { AnswerError, fetchJson } from "./fetching.js";
import { count } from "./format.js";

/** @typedef {import("./alertstate.js").Delivery} Delivery */
/** @typedef {import("./alertstate.js").Transition} Transition */

const PAGE = 20;

export class AlertPast {
  #parts;

  /** @param {import("./alertstate.js").Alert} alert */
  constructor({ id, unit }) {
    /** @param {Transition} moved */
    const cells = (moved) => moveCells(moved, unit);
    this.#parts = [
      new Pages("History", `/api/alerts/${id}/transitions`, ["when", "from", "to", "update", "seen"], cells),
      new Pages("Deliveries", `/api/alerts/${id}/deliveries`, ["when", "channel", "told", "outcome"], toldCells),
    ];
    this.root = element("div", { class: "past" }, ...this.#parts.map(({ root }) => root));
  }

  /** Read again as many pages as are shown. */
  async load() {
    await Promise.all(this.#parts.map((part) => part.load()));
  }
}

/** @template Line */
class Pages {
  #path;
  #columns;
  #cells;
  #shown = 0;
  #table = element("div");
  #more = element("button", { type: "button", class: "link", hidden: true }, "Show older");

  /**
   * @param {string} title
   * @param {string} path
   * @param {string[]} columns
   * @param {(line: Line) => string[]} cells
   */
  constructor(title, path, columns, cells) {
    this.#path = path;
    this.#columns = columns;
    this.#cells = cells;
    this.root = element("section", {}, element("h3", {}, title), this.#table, this.#more);
    this.#more.addEventListener("click", () => void this.load(this.#shown + PAGE));
  }

  /** @param {number} [wanted] rows */
  async load(wanted = Math.max(this.#shown, PAGE)) {
    try {
      const { items, next } = await readPages(this.#path, wanted);
      this.#shown = Math.max(items.length, PAGE);
      this.#more.hidden = next === null;
      const rows = items.map(this.#cells);
      fill(this.#table, rows.length ? table(this.#columns, rows) : element("p", { class: "note" }, "Nothing yet."));
    } catch (error) {
      if (!(error instanceof AnswerError)) throw error;
      fill(this.#table, element("p", { class: "bad" }, `It could not be read: ${error.message}.`));
    }
  }
}

/**
 * As many items of a list as are wanted, or all that there are.
 * @param {string} path with or without a query
 * @param {number} wanted
 * @returns {Promise<{items: any[], next: string | null}>}
 */
export async function readPages(path, wanted) {
  const items = [];
  let next = null;
  do {
    const query = new URLSearchParams({ limit: String(Math.min(wanted - items.length, 200)) });
    if (next !== null) query.set("cursor", next);
    const page = await fetchJson(`${path}${path.includes("?") ? "&" : "?"}${query}`);
    items.push(...page.items);
    next = page.next;
  } while (next !== null && items.length < wanted);
  return { items, next };
}

/**
 * @param {Transition} moved
 * @param {import("./alertstate.js").Unit} unit
 */
function moveCells(moved, unit) {
  const seen = [evidence(moved, unit), moved.sentence].filter(Boolean).join(" · ");
  return [exactly(moved.at), moved.before, moved.after, moved.step === null ? "" : count(moved.step), seen];
}

/** @param {Delivery} line */
function toldCells({ at, channel, happened, state, attempts, error }) {
  const tried = attempts > 1 ? ` after ${attempts} attempts` : "";
  return [exactly(at), channel, happened, `${state}${tried}${error ? `: ${error}` : ""}`];
}

/** @param {number} at */
function exactly(at) {
  return new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/**
 * @param {string[]} columns
 * @param {string[][]} rows
 */
function table(columns, rows) {
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  const body = rows.map((row) => element("tr", {}, ...row.map((text) => element("td", {}, text))));
  const numbers = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.join(", ") }, numbers);
}
