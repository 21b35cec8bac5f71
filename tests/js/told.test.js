import assert from "node:assert/strict";
import { test } from "node:test";
import { lossText, scheduleText } from "../../frontend/clocks.js";
import { cosineText } from "../../frontend/probe.js";
import { bytes, epsText } from "../../frontend/setup.js";
import { tableOf } from "../../frontend/table.js";
import { whereText } from "../../frontend/windows.js";

/** @type {import("../../frontend/clocks.js").Counts} */
const counts = { attempted: 240, applied: 229, skipped: 11, state: "running" };
const none = { ...counts, attempted: 0, applied: 0, skipped: 0 };

test("skipped updates are told as data that changed nothing", () => {
  assert.equal(lossText(counts), "11 updates saw their data and changed nothing: 229 of 240 moved the weights.");
  assert.equal(lossText({ ...counts, skipped: 0 }), "Each attempted update was applied.");
});

test("a run that ended does not promise an update", () => {
  assert.equal(lossText(none), "No update yet.");
  assert.equal(lossText({ ...none, state: "finished" }), "Ended without an update.");
});

test("a scheduler's clock is told with its lag", () => {
  const follows = (/** @type {string} */ clock) => ({ name: "StepLR", follows: clock });
  assert.equal(
    scheduleText(counts, follows("attempted"), 240),
    "StepLR follows attempted updates: the learning rate is 11 steps ahead of the weights.",
  );
  assert.equal(
    scheduleText(counts, follows("applied"), 229),
    "StepLR follows applied updates: the learning rate rests where the weights do.",
  );
  assert.match(scheduleText(counts, follows("unknown"), 5), /stepped 5 times: it follows neither/);
  assert.match(scheduleText(counts, follows("unknown"), 240), /^No skip has told yet/);
});

test("updates are named one by one, stretches by their ends, and a long list by its beginning", () => {
  assert.equal(whereText({ updates: 1, stretches: [[155, 155]] }), "1 update: 155");
  assert.equal(
    whereText({
      updates: 1004,
      stretches: [
        [0, 999],
        [2000, 2003],
      ],
    }),
    "1,004 updates: 0–999, 2,000–2,003",
  );
  const many = Array.from({ length: 9 }, (_, i) => /** @type {[number, number]} */ ([i, i]));
  assert.equal(whereText({ updates: 9, stretches: many }), "9 updates: 0, 1, 2, 3, 4, 5 and later");
});

test("sizes in memory are short", () => {
  assert.deepEqual([0, 1023, 1024, 205852, 3 * 2 ** 30].map(bytes), [
    "0 B",
    "1,023 B",
    "1.00 KiB",
    "201 KiB",
    "3.00 GiB",
  ]);
});

test("an eps is told only where a format loses or changes it", () => {
  const row = { optimizer: "Adam", group: 0, dtypes: {}, eps: 1e-8, eps_format: "float16" };
  assert.match(epsText({ ...row, eps_in_format: 0, eps_lost: true }), /^eps 1\.00e-8 is 0 in float16/);
  assert.equal(epsText({ ...row, eps_in_format: 9.99999993922529e-9, eps_lost: false }), "");
  assert.match(epsText({ ...row, eps: 1e-7, eps_in_format: 1.192e-7, eps_lost: false }), /becomes 1\.19e-7/);
  assert.equal(epsText({ optimizer: "SGD", group: 0, dtypes: {} }), "");
});

test("a cosine near 1 says how near", () => {
  assert.equal(cosineText(0.999997), "1 − 3.00e-6");
  assert.equal(cosineText(0.5), "0.5");
});

test("the table behind percentages holds the shares", () => {
  const layout = { xaxis: {}, yaxis: {} };
  const line = { type: "scatter", name: "skipped", x: [0, 1], y: [7.6, null], meta: { per: 100 } };
  assert.deepEqual(tableOf({ data: [line], layout }).rows, [
    [0, 0.076],
    [1, null],
  ]);
  const heat = { type: "heatmap", x: [-0.5, 9.5], y: ["a"], z: [[50]], meta: { per: 100 } };
  assert.deepEqual(tableOf({ data: [heat], layout }).rows, [["a", 0.5]]);
});
