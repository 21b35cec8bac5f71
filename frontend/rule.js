/**
 * What a rule is, and which are shown. Pure.
 *
 * @typedef {object} Rule
 * @property {number} id
 * @property {number} revision grows with each change
 * @property {string} name
 * @property {string} when the sentence
 * @property {import("./alertstate.js").Severity} severity
 * @property {string} keep_firing
 * @property {string} project
 * @property {string} run
 * @property {string} tag
 * @property {string} text
 * @property {string[]} channels
 * @property {string} cooldown
 * @property {string} reason
 * @property {string} source
 * @property {boolean} enabled
 * @property {boolean} built_in of the pack that comes with the server
 * @property {boolean} edited
 * @property {string | null} error why it cannot be evaluated
 *
 * @typedef {Map<import("./alertstate.js").Standing, number>} Standings
 *
 * @typedef {Pick<Rule, "name" | "when" | "severity" | "keep_firing" | "project" | "run" | "tag" | "text" | "channels"
 *   | "cooldown" | "reason" | "source" | "enabled">} RuleGiven what the API takes
 */

/**
 * The user's own first, then by name; of those that hold `text`, if any is given.
 * @param {Rule[]} rules
 * @param {string} text
 */
export function chosenRules(rules, text) {
  const sought = text.trim().toLowerCase();
  const held = (/** @type {Rule} */ { name, when, project, severity }) =>
    [name, when, project, severity].some((part) => part.toLowerCase().includes(sought));
  return rules
    .filter((rule) => !sought || held(rule))
    .sort((a, b) => Number(a.built_in) - Number(b.built_in) || a.name.localeCompare(b.name));
}

/**
 * Where it comes from and where it applies; nothing where it is the user's own and applies everywhere.
 * @param {Rule} rule
 */
export function about({ built_in, edited, project, run, tag }) {
  const scope = [
    ["project", project],
    ["run", run],
    ["tag", tag],
  ].filter(([, glob]) => glob !== "*");
  return [built_in && (edited ? "built-in, edited" : "built-in"), ...scope.map((part) => part.join(" "))]
    .filter(Boolean)
    .join(" · ");
}
