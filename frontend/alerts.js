/** The alerts: what fires, what is watched for, and what people do about it. */

import { AlertCard } from "./alertcard.js";
import { readPages } from "./alertpast.js";
import { standingsByRule, urgent } from "./alertstate.js";
import { AllRunsPage } from "./allruns.js";
import { keepFocus } from "./attempt.js";
import { RuleEditor } from "./editor.js";
import { byId, element, fill, setText } from "./elements.js";
import { fetchJson, root, sendJson } from "./fetching.js";
import { dated } from "./format.js";
import { offerNotifications } from "./notifying.js";
import { RuleTable } from "./rulelist.js";

/** @typedef {import("./alertstate.js").Alert} Alert */
/** @typedef {import("./rule.js").Rule} Rule */
/** @typedef {import("./silences.js").Silence} Silence */

const PAGE = 50;
// Enough to know where the newest firing lies; the rest of its past is read when it is asked for.
const PAST = 5;
// What was told of an alert is fetched at once; other news say little of alerts.
const QUIET_NEWS_MS = 1000;
const RULES_EVERY_MS = 30_000;
/** What is shown of alerts, as queries whose answers are put together: a firing comes first, however long ago it began. */
const FEEDS = /** @type {Record<string, string[]>} */ ({
  "": ["open=true", "open=false&state=pending&state=error"],
  quiet: ["state=quiet"],
  "no data": ["open=false&state=no+data"],
  any: ["open=true", "open=false"],
});

const show = /** @type {HTMLSelectElement} */ (byId("show"));
const anyRun = byId("any-run");
const more = byId("more");
let run = new URLSearchParams(location.search).get("run");
let wanted = PAGE;
/** @type {Rule[] | null} */
let rules = null;
let rulesAt = Number.NEGATIVE_INFINITY;
/** @type {Map<number, AlertCard>} */
let cards = new Map();
let waiting = false;

show.value = new URLSearchParams(location.search).get("show") ?? "";
if (!(show.value in FEEDS)) show.value = "";
const page = new AllRunsPage({ load, onNews });
const deeds = { acknowledge, mute, now: () => page.now };
const table = new RuleTable(turn);
show.addEventListener("input", () => {
  wanted = PAGE;
  changed();
});
byId("filter").addEventListener("submit", (event) => event.preventDefault());
anyRun.addEventListener("click", () => {
  run = null;
  changed();
});
more.addEventListener("click", () => {
  wanted += PAGE;
  page.ask();
});
showRun();
offerNotifications(/** @type {HTMLButtonElement} */ (byId("notify")));
page.start();
setInterval(() => {
  for (const card of cards.values()) card.tick();
}, 1000);

async function load() {
  const [feeds, counts, silences, known] = await Promise.all([
    Promise.all((FEEDS[show.value] ?? []).map(fetchAlerts)),
    fetchJson("/api/alerts/counts"),
    fetchJson("/api/silences"),
    fetchRules(),
  ]);
  return () => {
    rules = known;
    showAlerts(urgent(feeds.flatMap(({ items }) => items)));
    more.hidden = feeds.every(({ next }) => next === null);
    showSilences(silences.items);
    showRules(counts.items);
    showEditor();
  };
}

/** @param {string} feed */
function fetchAlerts(feed) {
  const query = new URLSearchParams(feed);
  query.set("past", String(PAST));
  if (run !== null) query.set("run", run);
  return readPages(`/api/alerts?${query}`, wanted);
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

/** @param {Alert[]} alerts */
function showAlerts(alerts) {
  /** @type {typeof cards} */
  const kept = new Map();
  for (const alert of alerts) {
    const card = cards.get(alert.id) ?? new AlertCard(alert, deeds);
    card.show(alert, rules?.find(({ id }) => id === alert.rule)?.when);
    kept.set(alert.id, card);
  }
  cards = kept;
  const shown = [...kept.values()].map((card) => card.root);
  const list = byId("alerts");
  if (!shown.length) fill(list, element("p", { class: "card nothing" }, nothing()));
  else if (shown.length !== list.children.length || shown.some((card, i) => card !== list.children[i])) {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    // What is moved loses the focus.
    keepFocus(
      () => list.replaceChildren(...shown),
      () => list,
    );
    if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
}

function nothing() {
  const where = run === null ? "" : " on this run";
  if (show.value === "") return `Nothing fires${where}. What is over is under “Show”.`;
  return `There is no such alert${where}.`;
}

/** @param {Silence[]} silences */
function showSilences(silences) {
  const on = silences.filter(({ starts_at }) => starts_at <= page.now);
  byId("silenced").hidden = !on.length;
  const words = on.map(
    ({ project, ends_at }) => `of ${project === "*" ? "any project" : project} until ${dated(ends_at)}`,
  );
  setText(byId("silenced-words"), `Nothing is told ${words.join(", ")}.`);
}

/** @param {import("./alertstate.js").AlertCount[]} counts */
function showRules(counts) {
  if (!rules) return;
  if (!table.root.isConnected) fill(byId("rules"), table.root);
  table.show(rules, standingsByRule(counts));
}

/** Once: what is typed stays, whatever comes. */
function showEditor() {
  const given = new URLSearchParams(location.search);
  const asked = given.get("rule");
  if (asked === null || !rules || !byId("editor").hidden) return;
  const rule = rules.find(({ id }) => String(id) === asked) ?? null;
  byId("editor").hidden = false;
  if (!rule && asked !== "new")
    fill(byId("editor"), "There is no such rule any more. ", element("a", { href: `${root}/alerts` }, "All rules"));
  else fill(byId("editor"), new RuleEditor(rule, given.get("on")).root);
}

/** @param {Alert} alert */
function acknowledge(alert) {
  return asked(sendJson("POST", `/api/alerts/${alert.id}/acknowledge`));
}

/**
 * @param {Alert} alert
 * @param {number | null} until
 */
function mute(alert, until) {
  return asked(sendJson("POST", `/api/alerts/${alert.id}/mute`, { until }));
}

/**
 * @param {Rule} rule
 * @param {boolean} enabled
 */
async function turn(rule, enabled) {
  const turned = await asked(sendJson("PATCH", `/api/rules/${rule.id}`, { enabled }));
  rulesAt = Number.NEGATIVE_INFINITY;
  return turned;
}

/**
 * What has changed may have changed more than what is answered.
 * @param {Promise<any>} sent
 */
async function asked(sent) {
  const answer = await sent;
  page.ask();
  return answer;
}
