import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { limitLine, whatIf } from "../../frontend/whatif.js";

// Written by the server's numerics; tests/test_figures.py holds the file to them.
const golden = JSON.parse(readFileSync(new URL("whatif.json", import.meta.url), "utf8"));

/** @param {Partial<import("../../frontend/whatif.js").Reading>} changes */
function reading(changes) {
  return {
    step: 0,
    scale: 1,
    periodic: true,
    samples: 1,
    low: 0,
    counts: [1],
    zero: 0,
    inf: 0,
    nan: 0,
    amax: 1,
    ...changes,
  };
}

test("the slider says what the server's numerics say", () => {
  for (const { readings, octaves, flush, overflow, headroom } of golden) {
    const found = whatIf(readings, octaves);
    assert.deepEqual(found.flush, flush);
    assert.deepEqual(found.overflow, overflow);
    assert.ok(Math.abs((found.headroom ?? Number.NaN) - headroom) < 1e-9);
  }
});

test("a value on the flush boundary is in doubt, so the share is an interval", () => {
  const found = whatIf([reading({ low: -26, counts: [1, 2, 1], amax: 2 ** -24 })], 0);
  assert.deepEqual(found.flush, { low: 0.25, high: 0.75 });
});

test("samples of two scales are each compared at their own", () => {
  const found = whatIf([reading({ scale: 1, low: -26 }), reading({ scale: 4, low: -26, samples: 2 })], 0);
  assert.deepEqual(found.flush, { low: 1, high: 1 });
  assert.deepEqual(whatIf([reading({ scale: 4, low: -26 })], 8).flush, { low: 0, high: 0 });
  assert.equal(found.samples, 3);
});

test("a skipped update's sample counts only where there is no other", () => {
  const skipped = reading({ periodic: false, amax: 60000, low: 15 });
  assert.equal(whatIf([skipped, reading({})], 0).elements, 1);
  assert.ok((whatIf([skipped, reading({})], 0).headroom ?? 0) > 15);
  assert.ok((whatIf([skipped], 0).headroom ?? 9) < 1);
});

test("nothing but zeros has no headroom and loses nothing", () => {
  const found = whatIf([reading({ counts: [], amax: 0, zero: 7 })], 40);
  assert.deepEqual([found.flush, found.headroom], [{ low: 0, high: 0 }, null]);
});

test("a scale one octave lower raises every limit by one octave on the chart", () => {
  assert.deepEqual(limitLine([10, null, 12], 9, 16), [17, 17, 19, 19]);
  assert.deepEqual(limitLine([10, 12], null, 16), [16, 16, 16]);
});
