import assert from "node:assert/strict";
import { test } from "node:test";
import { Refetch } from "../../frontend/refetch.js";

/** A clock that stands still until it is moved, and works that end when they are told to. */
function stage() {
  let now = 0;
  /** @type {{at: number, run: () => void}[]} */
  const later = [];
  /** @type {{done: () => void, fail: (error: Error) => void}[]} */
  const works = [];
  /** @type {unknown[]} */
  const failures = [];
  const refetch = new Refetch(
    () => new Promise((done, fail) => works.push({ done: () => done(undefined), fail })),
    (error) => failures.push(error),
    { now: () => now, later: (run, ms) => later.push({ at: now + ms, run }) },
  );
  return {
    refetch,
    works,
    failures,
    /** @param {number} ms */
    async pass(ms) {
      now += ms;
      for (const due of later.splice(0)) due.at <= now ? due.run() : later.push(due);
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

test("the first news is fetched at once", () => {
  const { refetch, works } = stage();
  refetch.ask();
  assert.equal(works.length, 1);
});

test("news during a fetch start one more, once it is drawn and a pause as long has passed", async () => {
  const { refetch, works, pass } = stage();
  refetch.ask();
  for (let i = 0; i < 10; i++) refetch.ask();
  await pass(80);
  works[0]?.done();
  await pass(0);
  assert.equal(works.length, 1);
  await pass(79);
  assert.equal(works.length, 1);
  await pass(1);
  assert.equal(works.length, 2);
  works[1]?.done();
  await pass(1000);
  assert.equal(works.length, 2);
});

test("nothing is fetched while the reader drags, and one fetch follows", async () => {
  const { refetch, works, pass } = stage();
  refetch.hold();
  refetch.ask();
  refetch.ask();
  await pass(1000);
  assert.equal(works.length, 0);
  refetch.release();
  assert.equal(works.length, 1);
});

test("a failure is told and tried again after a while", async () => {
  const { refetch, works, failures, pass } = stage();
  refetch.ask();
  works[0]?.fail(new Error("no answer"));
  await pass(0);
  assert.equal(failures.length, 1);
  assert.equal(works.length, 1);
  await pass(2000);
  assert.equal(works.length, 2);
});
