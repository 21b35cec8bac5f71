/** The alerts: what fires, what is watched for, and what people do about it. */

import { AlertCard } from "./alertcard.js";
import { statesByRule, urgent } from "./alertstate.js";
import { AllRunsPage } from "./allruns.js";
import { RuleEditor } from "./editor.js";
import { byId, element, fill, setText } from "./elements.js";
import { AnswerError, fetchJson, sendJson } from "./fetching.js";
import { offerNotifications } from "./notifying.js";
import { given, ruleTable } from "./rulelist.js";

/** @typedef {import("./alertstate.js").Alert} Alert */
/** @typedef {import("./rulelist.js").Rule} Rule */

const MOST = 200;
// What was told of an alert is fetched at once; other news say little of alerts.
const QUIET_NEWS_MS = 1000;
const RULES_EVERY_MS = 30_000;
// What has fired, or is about to, or cannot be judged.
const OPEN = "state=firing&state=recovering&state=pending&state=error";

const show = /** @type {HTMLSelectElement} */ (byId("show"));
const anyRun = byId("any-run");
let run = new URLSearchParams(location.search).get("run");
/** @type {Alert[]} */
let alerts = [];
/** @type {Alert[]} */
let open = [];
let more = false;
/** @type {Rule[] | null} */
let rules = null;
let rulesAt = Number.NEGATIVE_INFINITY;
let rulesShown = "";
/** @type {Map<number, {key: string, card: AlertCard}>} */
let cards = new Map();
let waiting = false;

show.value = new URLSearchParams(location.search).get("show") ?? "";
const page = new AllRunsPage({ load, onNews });
show.addEventListener("input", changed);
byId("filter").addEventListener("submit", (event) => event.preventDefault());
anyRun.addEventListener("click", () => {
  run = null;
  changed();
});
showRun();
offerNotifications(/** @type {HTMLButtonElement} */ (byId("notify")));
page.start();
setInterval(() => {
  for (const { card } of cards.values()) card.tick(page.now);
}, 1000);

async function load() {
  const [found, all, known] = await Promise.all([
    fetchAlerts(),
    fetchJson(`/api/alerts?${OPEN}&limit=${MOST}`),
    fetchRules(),
  ]);
  return () => {
    alerts = urgent(found.items);
    more = found.next !== null;
    open = all.items;
    rules = known;
    showAlerts();
    showRules();
    showEditor();
  };
}

function fetchAlerts() {
  const query = new URLSearchParams(show.value === "" ? OPEN : show.value === "any" ? "" : { state: show.value });
  query.set("limit", String(MOST));
  if (run !== null) query.set("run", run);
  return fetchJson(`/api/alerts?${query}`);
}

/** Rules change seldom. */
async function fetchRules() {
  if (rules && performance.now() - rulesAt < RULES_EVERY_MS) return rules;
  rulesAt = performance.now();
  return /** @type {Rule[]} */ ((await fetchJson("/api/rules")).items);
}

/** @param {boolean} told whether something was told of an alert */
function onNews(told) {
  if (told) page.ask();
  else if (!waiting) {
    waiting = true;
    setTimeout(() => {
      waiting = false;
      page.ask();
    }, QUIET_NEWS_MS);
  }
}

function changed() {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of [
    ["show", show.value],
    ["run", run],
  ])
    if (value) query.set(/** @type {string} */ (name), value);
    else query.delete(/** @type {string} */ (name));
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text && `?${text}`));
  showRun();
  page.ask();
}

function showRun() {
  anyRun.hidden = run === null;
  if (run !== null) setText(anyRun, `Only of ${run}: show all runs`);
}

function showAlerts() {
  /** @type {typeof cards} */
  const kept = new Map();
  for (const alert of alerts) {
    const key = JSON.stringify(alert);
    const before = cards.get(alert.id);
    const deeds = { acknowledge, mute };
    const isOpen = before?.card.open;
    kept.set(alert.id, before?.key === key ? before : { key, card: new AlertCard(alert, deeds, page.now, isOpen) });
  }
  const same = [...kept.values()].map(({ card }) => card.root);
  const shown = [...byId("alerts").children];
  if (!same.length) fill(byId("alerts"), element("p", { class: "card nothing" }, nothing()));
  // What stands where it stood keeps its place, its focus and its open lists.
  else if (same.length !== shown.length || same.some((card, i) => card !== shown[i]))
    fill(byId("alerts"), ...same, more && element("p", { class: "note" }, `The newest ${MOST} alerts.`));
  cards = kept;
}

function nothing() {
  const where = run === null ? "" : " on this run";
  if (show.value === "") return `Nothing fires${where}. What is over is under “Show”.`;
  return `There is no such alert${where}.`;
}

function showRules() {
  const states = statesByRule(open);
  const key = JSON.stringify([rules, [...states].map(([rule, counts]) => [rule, ...counts])]);
  if (!rules || key === rulesShown) return;
  rulesShown = key;
  fill(byId("rules"), ruleTable(rules, states, turn));
}

/** Once: what is typed stays, whatever comes. */
function showEditor() {
  const asked = new URLSearchParams(location.search).get("rule");
  if (asked === null || !rules || !byId("editor").hidden) return;
  const rule = rules.find(({ id }) => String(id) === asked) ?? null;
  byId("editor").hidden = false;
  if (!rule && asked !== "new") fill(byId("editor"), "There is no such rule any more.");
  else fill(byId("editor"), new RuleEditor(rule).root);
}

/** @param {Alert} alert */
function acknowledge(alert) {
  void ask(() => sendJson("POST", `/api/alerts/${alert.id}/acknowledge`));
}

/**
 * @param {Alert} alert
 * @param {number | null} seconds
 */
function mute(alert, seconds) {
  const until = seconds === null ? null : page.now + seconds;
  void ask(() => sendJson("POST", `/api/alerts/${alert.id}/mute`, { until }));
}

/**
 * @param {Rule} rule
 * @param {boolean} enabled
 */
function turn(rule, enabled) {
  void ask(() => sendJson("PUT", `/api/rules/${rule.id}`, given(rule, { enabled })));
}

/**
 * Ask something of the server, and show what came of it.
 * @param {() => Promise<unknown>} send
 */
async function ask(send) {
  try {
    await send();
  } catch (error) {
    if (!(error instanceof AnswerError)) throw error;
    page.tell(error.message);
  }
  rulesAt = Number.NEGATIVE_INFINITY;
  rulesShown = "";
  page.ask();
}
