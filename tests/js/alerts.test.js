import assert from "node:assert/strict";
import { test } from "node:test";
import {
  evidence,
  sinceText,
  standing,
  standingsByRule,
  standingsText,
  stateText,
  urgent,
  viewOf,
} from "../../frontend/alertstate.js";
import { countsText, lastText, trialText as testText } from "../../frontend/channelstate.js";
import { chosenRules } from "../../frontend/rule.js";
import { blanks, shapesOf, written } from "../../frontend/sentences.js";
import { healthyText, places, trialText } from "../../frontend/trial.js";

const ALERT = {
  id: 1,
  rule: 3,
  severity: "warning",
  state: "firing",
  run: "a/b",
  since_step: 1200,
  since_at: 100,
  firings: 2,
};
const alert = (changes) => ({
  ...ALERT,
  value: null,
  culprit: null,
  acknowledged_at: null,
  transitions: [],
  ...changes,
});
const NAMES = {
  series: [
    { name: "scale", quantity: "number" },
    { name: "loss", quantity: "number" },
  ],
  measures: [
    { name: "flush_share", quantity: "share", rows: "layer" },
    { name: "unchanged_share", quantity: "share", rows: "layer" },
    { name: "amax", quantity: "number", rows: "layer" },
    { name: "forward_amax", quantity: "number", rows: "module" },
  ],
  compared: ["scale", "skipped"],
  findings: ["SCALE_THRASH"],
};
const moved = (firing, step) => ({ firing, step });
const trial = (changes) => ({
  updates: 1000,
  first_step: 0,
  last_step: 999,
  count: 0,
  firings: [],
  state: "quiet",
  error: null,
  ...changes,
});
const firing = (step, until_step) => ({
  step,
  until_step,
  steps: until_step === null ? null : until_step - step,
  seconds: null,
});

test("what nobody has taken up comes first, then what is critical, then what is new", () => {
  const alerts = [
    alert({ id: 1, state: "pending", severity: "critical" }),
    alert({ id: 2, acknowledged_at: 5, severity: "critical" }),
    alert({ id: 3 }),
    alert({ id: 4, since_at: 200 }),
    alert({ id: 5, severity: "critical" }),
  ];
  assert.deepEqual(
    urgent(alerts).map(({ id }) => id),
    [5, 4, 3, 2, 1],
  );
});

test("an alert leads to the updates of its newest firing, with room on both sides", () => {
  const transitions = [moved(2, 1300), moved(2, 1200), moved(1, 10)];
  assert.equal(viewOf(alert({ transitions }), "/p"), "/p/runs/a%2Fb?from=1000&to=1501");
  assert.equal(viewOf(alert({}), ""), "/runs/a%2Fb?from=1000&to=1401");
  assert.equal(viewOf(alert({ since_step: null }), ""), "/runs/a%2Fb");
});

test("since when and what was seen are told in words", () => {
  assert.equal(sinceText(alert({}), 160), "since update 1,200, 60 s ago");
  assert.equal(evidence({ value: "inf", culprit: "blocks.3" }, "%"), "value inf · culprit blocks.3");
  assert.equal(evidence({ value: null, culprit: null }, ""), "");
  const seen = (value, unit) => evidence({ value, culprit: null }, unit);
  assert.deepEqual([seen(0.25, "%"), seen(0.25, "")], ["value 25%", "value 0.25"]);
  assert.deepEqual([seen(2500, "ms"), seen(620.4, "s")], ["value 2,500 ms", "value 10 min"]);
});

test("a firing of which nothing can be said now is a firing still, and comes before what may fire", () => {
  const without = alert({ id: 1, state: "no data", open: true });
  assert.equal(standing(without), "unanswered");
  assert.equal(stateText(without), "firing, no data now");
  assert.equal(stateText(alert({ state: "error", open: true })), "firing, cannot be judged now");
  assert.equal(stateText(alert({ state: "no data", open: false })), "no data");
  const alerts = [alert({ id: 3, state: "pending" }), alert({ id: 4, state: "error" }), without, alert({ id: 2 })];
  assert.deepEqual(
    urgent(alerts).map(({ id }) => id),
    [2, 1, 4, 3],
  );
});

test("alerts are counted by rule and how they stand, those of deleted rules not", () => {
  const one = { rule: 3, open: true, count: 1 };
  const standings = standingsByRule([
    { ...one, state: "firing", count: 2 },
    { ...one, state: "no data" },
    { ...one, state: "error" },
    { ...one, state: "pending", open: false },
    { ...one, state: "firing", rule: null },
  ]);
  assert.deepEqual(
    [...standings].map(([rule, counts]) => [rule, ...counts]),
    [[3, ["firing", 2], ["unanswered", 2], ["pending", 1]]],
  );
  assert.equal(standingsText(standings.get(3)), "2 firing · 2 firing, not judged now · 1 pending");
  assert.equal(standingsText(new Map([["no data", 4]])), "quiet");
});

test("rules are found by what they are called, say and apply to, the user's own first", () => {
  const rule = (name, changes) => ({ name, when: "when scale < 1", project: "*", severity: "info", ...changes });
  const rules = [rule("pack/a", { built_in: true }), rule("b", { project: "vision" }), rule("a", {})].map((each) => ({
    built_in: false,
    ...each,
  }));
  const names = (text) => chosenRules(rules, text).map(({ name }) => name);
  assert.deepEqual(names(""), ["a", "b", "pack/a"]);
  assert.deepEqual(names(" VISION "), ["b"]);
  assert.deepEqual(names("scale"), ["a", "b", "pack/a"]);
  assert.deepEqual(names("nothing"), []);
});

test("how a channel fared and what became of a test are told in words", () => {
  assert.equal(lastText({ tried_at: null, arrived: null, error: null }, 100), "No alert was told here yet.");
  assert.equal(
    lastText({ tried_at: 40, arrived: true, error: "long ago" }, 100),
    "The last message arrived, 60 s ago.",
  );
  assert.equal(
    lastText({ tried_at: 40, arrived: false, error: "the receiver answered 410" }, 100),
    "The last message did not arrive, 60 s ago: the receiver answered 410.",
  );
  assert.equal(countsText({ waiting: 0, delivered: 1200, failed: 1 }), "1,200 arrived · 1 given up");
  assert.equal(testText({ delivered: true, error: null, took_s: 0.21 }), "The test arrived after 0.2 s.");
  assert.equal(testText({ delivered: true, error: null, took_s: 0.02 }), "The test arrived at once.");
});

test("each shape writes a sentence out of its blanks", () => {
  const shapes = shapesOf(NAMES);
  const all = shapes.map((shape) =>
    written(shape, blanks(shape), shape.title.startsWith("updates") ? " 5 steps " : ""),
  );
  assert.equal(all[0], "when changes(scale, 200 steps) >= 6");
  assert.equal(all[1], "when skipped in 8 of 10 updates for 5 steps");
  const layers = shapes.find(({ title }) => title === "a layer loses precision");
  assert.equal(
    written(layers, { s: "flush_share", l: "blocks.*", p: "5" }),
    'when max by layer(flush_share{layer="blocks.*"}) > 5%',
  );
  const series = shapes.find(({ title }) => title === "a series is not finite");
  assert.equal(written(series, { s: "val/loss" }), 'when "val/loss" is not finite');
  assert.deepEqual(series.parts[0].known, ["scale", "loss"]);
  assert.deepEqual(layers.parts[0].kind, ["flush_share", "unchanged_share"]);
});

test("what a rule would have done is told with how long it would have fired", () => {
  const two = [firing(100, 220), firing(500, 620)];
  assert.equal(
    trialText(trial({ count: 2, firings: two })),
    "Would have fired 2 times in 1,000 updates, for 120 updates each",
  );
  const open = [firing(100, 150), firing(900, null)];
  assert.equal(
    trialText(trial({ count: 2, firings: open })),
    "Would have fired 2 times in 1,000 updates, for 50 updates each, still firing at the end",
  );
  assert.equal(trialText(trial({})), "Would not have fired in 1,000 updates");
  assert.equal(trialText(trial({ updates: 0 })), "No update is stored.");
  assert.match(trialText(trial({ state: "no data" })), /does not tell what it asks for/);
  assert.equal(
    healthyText({ healthy_runs: 2, healthy_count: 0 }),
    "Would not have fired on the 2 runs that are marked healthy.",
  );
});

test("firings stand at their place between the first update tried and the last", () => {
  const found = places(trial({ first_step: 100, last_step: 299, firings: [firing(150, 200), firing(290, null)] }));
  assert.deepEqual(found, [
    { start: 0.25, width: 0.25 },
    { start: 0.95, width: 0.05 },
  ]);
});
