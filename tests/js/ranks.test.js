import assert from "node:assert/strict";
import { test } from "node:test";
import { cpuText, sentText, statesText } from "../../frontend/ranks.js";

/** @param {...import("../../frontend/ranks.js").RankState} states */
const ranks = (...states) => states.map((state) => ({ state }));

test("states are counted, and ranks that never called are told as well", () => {
  assert.equal(statesText(ranks("running", "running"), 2), "2 ranks: 2 running");
  assert.equal(
    statesText(ranks("stalled", "silent", "running"), 4),
    "4 ranks: 1 running, 1 stalled, 1 silent, 1 not heard of",
  );
  assert.equal(statesText(ranks("running", "absent"), 1000), "1,000 ranks: 1 running, 999 not heard of");
});

test("what a rank sent is told in all and for each update, where it is known", () => {
  assert.equal(sentText({ sent_bytes: 123_456, bytes_per_update: 411.5 }), "121 KiB, 412 B an update");
  assert.equal(sentText({ sent_bytes: 10, bytes_per_update: null }), "10 B");
  assert.equal(sentText({ sent_bytes: null, bytes_per_update: null }), "–");
  assert.equal(cpuText({ thread_cpu_s: 0.25 }), "250 ms of CPU");
  assert.equal(cpuText({ thread_cpu_s: 2.5 }), "2.5 s of CPU");
  assert.equal(cpuText({ thread_cpu_s: null }), "–");
});
