import assert from "node:assert/strict";
import { test } from "node:test";
import { crashText } from "../../frontend/facts.js";
import { evidenceText, ranked } from "../../frontend/findings.js";
import { count, duration, octaves, percent, power, short } from "../../frontend/format.js";
import { filtered, readFilter, severityOf, writeFilter } from "../../frontend/runlist.js";
import { sparkPath } from "../../frontend/sparkline.js";
import { csvOf, tableOf } from "../../frontend/table.js";
import { readView, writeView, zoomed } from "../../frontend/view.js";

test("a loss scale reads as a power of two, or as what it is", () => {
  assert.equal(power(524288), "2^19");
  assert.equal(power(2 ** -24), "2^-24");
  assert.equal(power(3000), "3,000");
  assert.equal(power(0), "0");
  assert.equal(power(null), "none");
  assert.equal(power("inf"), "inf");
});

test("something is never shown as nothing", () => {
  assert.equal(percent(0), "0 %");
  assert.equal(percent(1e-9), "< 0.01 %");
  assert.equal(percent(0.0367), "3.67 %");
});

test("numbers, times and octaves are short", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.equal(short(3400), "3.40 k");
  assert.equal(duration(0.2), "0.2 s");
  assert.equal(duration(600), "10 min");
  assert.equal(octaves(-0.84), "−0.8 oct");
});

test("an address holds the view and gives it back", () => {
  for (const search of ["", "?from=10&to=200", "?measure=amax&match=head", "?scale=-4", "?rank=0"]) {
    assert.equal(writeView(readView(search)), search);
  }
});

test("an address that means nothing shows the usual view", () => {
  assert.equal(writeView(readView("?from=9&to=3&scale=x&rank=all&other=1")), "");
  assert.equal(readView("?from=-1&to=1e3").range, null);
});

test("a zoom becomes whole updates, at least one, none before the first", () => {
  assert.deepEqual(zoomed([10.4, 20.2]), [10, 22]);
  assert.deepEqual(zoomed([-5, 0.1]), [0, 2]);
  assert.deepEqual(zoomed([7, 7]), [7, 8]);
});

test("runs are found by every word, their state and their project", () => {
  /** @param {object} changes */
  const run = (changes) =>
    /** @type {import("../../frontend/runlist.js").RunLine} */ ({
      id: "a",
      name: "Tiny GPT",
      tags: ["fp16"],
      state: "running",
      project: "demo",
      ...changes,
    });
  const runs = [run({}), run({ id: "b", name: "big", state: "crashed" })];
  const any = { text: "", state: "", project: "" };
  assert.equal(filtered(runs, any).length, 2);
  assert.deepEqual(filtered(runs, { ...any, text: "FP16 tiny" }), [runs[0]]);
  assert.deepEqual(filtered(runs, { ...any, state: "crashed" }), [runs[1]]);
  assert.equal(filtered(runs, { ...any, project: "other" }).length, 0);
  assert.equal(writeFilter(readFilter("?text=a+b&state=running")), "?text=a+b&state=running");
});

test("the severity of a run is that of its worst finding", () => {
  const run = (/** @type {Record<string, number>} */ findings) => severityOf(/** @type {any} */ ({ findings }));
  assert.equal(run({ info: 3, warning: 1 }), "warning");
  assert.equal(run({}), undefined);
});

test("open findings come before closed ones, the worst first", () => {
  const finding = (
    /** @type {string} */ code,
    /** @type {string} */ severity,
    /** @type {number | null} */ last_step,
  ) => /** @type {any} */ ({ code, severity, last_step, first_step: 1 });
  const found = ranked([finding("old", "fatal", 9), finding("note", "info", null), finding("now", "warning", null)]);
  assert.deepEqual(
    found.map(({ code }) => code),
    ["now", "note", "old"],
  );
});

test("evidence is told in a few words, long lists by their beginning", () => {
  const text = evidenceText({ skips: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], growth_interval: 25, parameter: null });
  assert.equal(text, " · skips 1, 2, 3, 4, 5, 6, 7, 8 and 2 more · growth interval 25");
});

test("a sparkline steps, and leaves a gap where there is no scale", () => {
  assert.equal(sparkPath([null, null]), "");
  assert.equal(sparkPath([1, 2, null, 1]), "M0,27H37.5V3H75M112.5,27H150");
});

test("the table behind a chart holds the values, not their logarithms", () => {
  const scale = { type: "scatter", name: "loss scale", x: [0, 1], y: [4, 5], customdata: [16, 32] };
  const marks = {
    type: "scatter",
    name: "changes",
    x: [1],
    y: [5],
    text: ["skipped, 2<sup>5</sup><br>head &lt;a&gt;"],
  };
  const band = { type: "scatter", name: "lowest", x: [0], y: [1], hoverinfo: "skip" };
  const figure = { data: [band, scale, marks], layout: { xaxis: {}, yaxis: {} } };
  assert.deepEqual(tableOf(figure), {
    columns: ["update", "loss scale", "changes"],
    rows: [
      [0, 16, null],
      [1, 32, "skipped, 2^5; head <a>"],
    ],
  });
});

test("the table behind a heat map has a row for each of its rows", () => {
  const heat = { type: "heatmap", x: [-0.5, 9.5, 19.5], y: ["&lt;a&gt;"], z: [[0.5, null]] };
  assert.deepEqual(tableOf({ data: [heat], layout: { xaxis: {}, yaxis: {} } }), {
    columns: ["row", "from 0", "from 10"],
    rows: [["<a>", 0.5, null]],
  });
});

test("the table behind a heat map holds the values that its colours follow by their logarithm", () => {
  const heat = { type: "heatmap", x: [-0.5, 9.5], y: ["a"], z: [[-3]], customdata: [[0.125]] };
  assert.deepEqual(tableOf({ data: [heat], layout: { xaxis: {}, yaxis: {} } }).rows, [["a", 0.125]]);
});

test("a crash is told with its time, its place and its exception, an end without one is not", () => {
  const segment = {
    id: "s",
    ordinal: 0,
    started_at: 0,
    ended_at: null,
    end: "crashed",
    detail: "no memory",
    first_step: 0,
  };
  const run = /** @type {any} */ ({ state: "crashed", segments: [segment], attempted: 1200 });
  assert.equal(crashText(run), "The trainer crashed, after 1,200 updates: no memory");
  assert.equal(crashText({ ...run, state: "running" }), "");
  assert.equal(crashText({ ...run, segments: [] }), "");
});

test("a spreadsheet never takes a name for a formula", () => {
  assert.equal(csvOf({ columns: ["=cmd()", 'a"b'], rows: [[-1, null]] }), `'=cmd(),"a""b"\r\n-1,`);
});
