/**
 * The numbers behind a figure as rows, for readers who do not see it and for a spreadsheet. Pure.
 *
 * @typedef {import("./plotly.d.ts").Figure} Figure
 * @typedef {{columns: string[], rows: (string | number | null)[][]}} Table
 */

/**
 * Lines become columns over their updates, a heat map a row for each of its own rows.
 * @param {Figure} figure
 * @returns {Table}
 */
export function tableOf(figure) {
  const heat = figure.data.find((trace) => trace.type === "heatmap");
  return heat ? heatTable(heat) : lineTable(figure.data);
}

/**
 * The table as comma-separated values; the text of a trainer cannot begin a formula.
 * @param {Table} table
 * @returns {string}
 */
export function csvOf(table) {
  return [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n");
}

/** @param {import("./plotly.d.ts").Trace} trace */
function heatTable(trace) {
  // Columns are told by their edges, half an update before the first they hold.
  const updates = (trace.x ?? []).slice(0, -1).map((edge) => `from ${Math.ceil(edge ?? 0)}`);
  const names = (trace.y ?? []).map(String);
  // Colours may follow a logarithm; the values themselves are beside it.
  const values = /** @type {(number | null)[][] | undefined} */ (trace.customdata) ?? trace.z ?? [];
  const rows = values.map((row, i) => [
    unescaped(names[i] ?? ""),
    ...row.map((value) => value && shareOf(trace, value)),
  ]);
  return { columns: ["row", ...updates], rows };
}

/** @param {import("./plotly.d.ts").Trace[]} traces */
function lineTable(traces) {
  const lines = traces.filter((trace) => trace.hoverinfo !== "skip" && (trace.x ?? []).length > 0);
  /** @type {Map<number, (string | number | null)[]>} */
  const rows = new Map();
  lines.forEach((trace, column) => {
    (trace.x ?? []).forEach((x, i) => {
      if (x === null) return;
      const row = rows.get(x) ?? new Array(lines.length).fill(null);
      row[column] = trace.text ? unescaped(String(trace.text[i] ?? "").replaceAll("<br>", "; ")) : valueAt(trace, i);
      rows.set(x, row);
    });
  });
  const sorted = [...rows].sort(([a], [b]) => a - b);
  const columns = lines.map((trace) => unescaped(trace.name ?? ""));
  return { columns: ["update", ...columns], rows: sorted.map(([x, row]) => [x, ...row]) };
}

/**
 * The value itself where the axis shows its logarithm.
 * @param {import("./plotly.d.ts").Trace} trace
 * @param {number} i
 * @returns {string | number | null}
 */
function valueAt(trace, i) {
  const own = trace.customdata?.[i] ?? trace.y?.[i] ?? null;
  return typeof own === "number" ? shareOf(trace, own) : /** @type {string | null} */ (own);
}

/**
 * Percentages are drawn, and the shares that they are of are told.
 * @param {import("./plotly.d.ts").Trace} trace
 * @param {number} value
 */
function shareOf({ meta }, value) {
  return meta?.per ? Number((value / meta.per).toPrecision(6)) : value;
}

/** @param {string} text marked up and escaped for Plotly */
function unescaped(text) {
  const raised = text.replaceAll(/<sup>(.*?)<\/sup>/g, "^$1");
  return raised.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

/** @param {string | number | null} value */
function cell(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
