import assert from "node:assert/strict";
import { test } from "node:test";
import { liveness } from "../../frontend/liveness.js";

/** @type {Parameters<typeof liveness>[0]} */
const running = { connection: "open", state: "running", lastSeenAt: 100, now: 100.2, lostAt: null };

test("a running run that was just heard is live", () => {
  assert.deepEqual(liveness(running), { kind: "live", text: "live, 0.2 s ago" });
});

test("a trainer that says nothing is silent, before the server calls it so", () => {
  assert.deepEqual(liveness({ ...running, now: 134 }), { kind: "stale", text: "trainer silent for 34 s" });
  assert.equal(liveness({ ...running, state: "silent" }).kind, "stale");
});

test("a finished run is not stale and a crashed one is told apart", () => {
  assert.deepEqual(liveness({ ...running, state: "finished", now: 400 }), { kind: "live", text: "finished 5 min ago" });
  assert.deepEqual(liveness({ ...running, state: "crashed", now: 400 }), { kind: "stale", text: "crashed 5 min ago" });
});

test("a lost server is lost whatever the run does", () => {
  for (const state of /** @type {const} */ (["running", "finished", "crashed", "silent", null])) {
    assert.equal(liveness({ ...running, state, connection: "lost", lostAt: 100 }).kind, "lost");
  }
});

test("before the first message a page claims nothing", () => {
  assert.equal(liveness({ ...running, connection: "connecting" }).kind, "connecting");
});

test("a clock that runs behind never shows a negative age", () => {
  assert.equal(liveness({ ...running, now: 90 }).text, "live, 0.0 s ago");
});
