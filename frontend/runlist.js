/**
 * Which runs a list shows. Pure.
 *
 * @typedef {object} RunLine
 * @property {string} id
 * @property {string} project
 * @property {string} name
 * @property {import("./liveness.js").RunState} state
 * @property {string[]} tags
 * @property {number} started_at
 * @property {number} attempted
 * @property {number} applied
 * @property {number} skipped
 * @property {number | string | null} scale
 * @property {Record<string, number>} findings
 * @property {string | null} worst
 * @property {number} firing how many of its alerts fire
 * @property {(number | null)[]} sparkline
 *
 * @typedef {{text: string, state: string, project: string}} Filter empty: any
 */

const SEVERITIES = ["fatal", "critical", "warning", "info"];

/**
 * @param {RunLine[]} runs
 * @param {Filter} filter
 * @returns {RunLine[]}
 */
export function filtered(runs, { text, state, project }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => {
    const all = [run.name, run.id, ...run.tags].join("\n").toLowerCase();
    return (
      words.every((word) => all.includes(word)) &&
      (!state || run.state === state) &&
      (!project || run.project === project)
    );
  });
}

/**
 * The severity of the worst finding, undefined without any.
 * @param {RunLine} run
 */
export function severityOf(run) {
  return SEVERITIES.find((severity) => (run.findings[severity] ?? 0) > 0);
}

/**
 * @param {string} search
 * @returns {Filter}
 */
export function readFilter(search) {
  const given = new URLSearchParams(search);
  return { text: given.get("text") ?? "", state: given.get("state") ?? "", project: given.get("project") ?? "" };
}

/**
 * @param {Filter} filter
 * @returns {string}
 */
export function writeFilter(filter) {
  const given = new URLSearchParams(Object.entries(filter).filter(([, value]) => value !== ""));
  const query = given.toString();
  return query && `?${query}`;
}
