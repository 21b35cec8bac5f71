/** The overview of a run: findings, tiles, the scale between its walls, and all other charts on one time axis. */

import { ChartCard } from "./cards.js";
import { showClocks } from "./clocks.js";
import { byId, element, fill, setText } from "./elements.js";
import { aboutText, crashText, showLedger, showSettings } from "./facts.js";
import { fetchJson, runPath } from "./fetching.js";
import { findingCard, ranked } from "./findings.js";
import { RankChooser } from "./rankchooser.js";
import { showRanks, showRankTrouble } from "./ranks.js";
import { RunPage } from "./runpage.js";
import { showMemory } from "./setup.js";
import { Tiles } from "./tiles.js";
import { showUnusual, showWindows } from "./windows.js";

/** @typedef {import("./plotly.d.ts").Chart} Chart */

const FINDINGS_EVERY_MS = 3000;
// A phone shows more points than it has pixels rather than a fold by eight.
const LEAST_POINTS = 600;
// Charts out of sight are drawn as well, so that they are there when the reader comes, but not with every update.
const OUT_OF_SIGHT_EVERY_MS = 5000;

const tiles = new Tiles(byId("tiles"));
/** @type {Map<string, ChartCard>} */
const cards = new Map();
/** @type {Set<string>} */
const inView = new Set(["scale"]);
const observer = new IntersectionObserver(seen);
let allDrawn = { view: "", at: Number.NEGATIVE_INFINITY, waiting: false };

const clocks = element("article", { class: "card" });
const ledger = element("article", { class: "card" });
const settings = element("article", { class: "card wide" });
const windows = element("article", { class: "card" });
const memory = element("article", { class: "card" });
const ranks = element("article", { class: "card wide", id: "ranks", hidden: true });
byId("facts").append(ranks, windows, clocks, memory, ledger, settings);

/** @type {import("./facts.js").Run | null} */
let run = null;
/** @type {import("./tiles.js").Headline | null} */
let headline = null;
/** @type {import("./windows.js").Told | null} */
let told = null;
/** @type {import("./live.js").News | null} */
let latest = null;
/** @type {Map<number, number | null>} */
const times = new Map();
let findingsShown = "";
let findingsAt = Number.NEGATIVE_INFINITY;

const page = new RunPage({
  load,
  onNews: (news) => {
    latest = news;
    tiles.showRun(news);
    showCounts();
    void loadFindings(JSON.stringify([news.findings, news.worst]));
    if (run && run.state !== news.state) void loadRun();
  },
  onBeat: () => {
    void loadRun();
    void loadTold();
    void loadFindings(findingsShown);
  },
  onRange: (range) => {
    for (const card of cards.values()) card.show([range[0] - 0.5, range[1] - 0.5]);
  },
});
const chooser = new RankChooser(byId("rank-chooser"), (rank) => page.change({ rank }));
page.start();
void loadRun();
void loadTold();
void loadFindings("");

async function load() {
  const width = Math.max(cards.get("scale")?.width ?? byId("charts").clientWidth, LEAST_POINTS);
  const query = page.query(width);
  if (page.view.rank !== null) query.set("rank", String(page.view.rank));
  const view = String(query);
  const all = cards.size > 0 && (view !== allDrawn.view || performance.now() - allDrawn.at >= OUT_OF_SIGHT_EVERY_MS);
  if (!all) for (const name of inView) query.append("chart", name);
  const answer = await fetchJson(`${runPath(page.run, "/figures")}?${query}`);
  return {
    step: answer.step,
    draw: async () => {
      for (const { name, title } of answer.available) addCard(name, title);
      for (const chart of /** @type {Chart[]} */ (answer.charts))
        await cards.get(chart.name)?.draw(chart, page.axis, page.now);
      if (all) allDrawn = { ...allDrawn, view, at: performance.now() };
      else askForAll(view);
      tiles.showHeadline(answer.tiles);
      headline = answer.tiles;
      showCounts();
      showChooser();
    },
  };
}

/**
 * Once nothing newer came for a while, the charts out of sight are not to stay behind.
 * @param {string} view what is drawn of the charts in sight
 */
function askForAll(view) {
  if (allDrawn.waiting) return;
  allDrawn.waiting = true;
  const wait = view === allDrawn.view ? allDrawn.at + OUT_OF_SIGHT_EVERY_MS - performance.now() : 0;
  setTimeout(
    () => {
      allDrawn.waiting = false;
      page.ask();
    },
    Math.max(wait, 0),
  );
}

/**
 * @param {string} name
 * @param {string} title
 */
function addCard(name, title) {
  if (cards.has(name)) return;
  const card = new ChartCard(name, title, name === "scale", page.reader);
  cards.set(name, card);
  byId("charts").append(card.root);
  observer.observe(card.root);
}

/** @param {IntersectionObserverEntry[]} entries */
function seen(entries) {
  for (const { target, isIntersecting } of entries) {
    const name = /** @type {HTMLElement} */ (target).dataset.chart ?? "";
    if (!isIntersecting) inView.delete(name);
    else if (!inView.has(name)) {
      inView.add(name);
      page.ask();
    }
  }
}

async function loadRun() {
  const found = await fetchJson(runPath(page.run)).catch(() => null);
  if (!found || page.held) return;
  run = /** @type {import("./facts.js").Run} */ (found);
  page.learn(run);
  setText(byId("name"), run.name);
  document.title = `${run.name} · Scalescope`;
  setText(byId("about"), aboutText(run, page.now));
  const crash = crashText(run);
  byId("crash").hidden = crash === "";
  setText(byId("crash"), crash);
  tiles.showRun(latest ?? run);
  tiles.showLedger(run.ledger);
  showCounts();
  showRankTrouble(byId("trouble"), run);
  showRanks(ranks, run);
  showChooser();
  showLedger(ledger, run);
  if (!settings.querySelector("details[open]")) showSettings(settings, run);
}

function showChooser() {
  const called = run?.rank_states.filter(({ state }) => state !== "absent") ?? [];
  chooser.show(
    called.map(({ rank }) => rank),
    page.view.rank,
  );
}

/** Facts change seldom: they are asked for with every beat. */
async function loadTold() {
  const found = await fetchJson(runPath(page.run, "/figures/facts")).catch(() => null);
  if (!found || page.held || JSON.stringify(found) === JSON.stringify(told)) return;
  told = /** @type {import("./windows.js").Told} */ (found);
  showUnusual(byId("unusual"), told.unusual, (range) => page.zoom(range));
  showWindows(windows, told);
  showMemory(memory, told.setup);
  showCounts();
}

function showCounts() {
  const counts = latest ?? run;
  if (!counts) return;
  showClocks(clocks, counts, {
    tokens: headline?.tokens ?? null,
    microBatches: told?.micro_batches ?? null,
    steps: headline?.scheduler_steps ?? null,
    scheduler: told?.scheduler ?? null,
  });
}

/**
 * An open finding's numbers move with every update: it is fetched again now and then, at once when one opens or ends.
 * @param {string} state what the news says of the findings
 */
async function loadFindings(state) {
  if (state === findingsShown && performance.now() - findingsAt < FINDINGS_EVERY_MS) return;
  findingsShown = state;
  findingsAt = performance.now();
  const answer = await fetchJson(runPath(page.run, "/findings")).catch(() => null);
  if (!answer || page.held) {
    findingsShown = "unknown";
    return;
  }
  const found = /** @type {import("./findings.js").Finding[]} */ (ranked(answer.items));
  showFindings(found);
  const before = times.size;
  for (const { first_step } of found) await learnTime(first_step);
  if (times.size > before && !page.held) showFindings(found);
}

/** @param {import("./findings.js").Finding[]} found */
function showFindings(found) {
  const show = (/** @type {[number, number]} */ range) => page.zoom(range);
  fill(byId("findings"), ...found.map((finding) => findingCard(finding, show, times.get(finding.first_step) ?? null)));
}

/**
 * When an update was, by what happened at it: a finding begins with an event.
 * @param {number} step
 */
async function learnTime(step) {
  if (times.has(step)) return;
  const answer = await fetchJson(`${runPath(page.run, "/events")}?from=${step}&to=${step + 1}&limit=1`).catch(
    () => null,
  );
  if (answer) times.set(step, answer.items[0]?.at ?? null);
}
