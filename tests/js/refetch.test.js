import assert from "node:assert/strict";
import { test } from "node:test";
import { Refetch } from "../../frontend/refetch.js";

/** A clock that stands still until it is moved, and fetches and drawings that end when they are told to. */
function stage() {
  let now = 0;
  /** @type {{at: number, run: () => void}[]} */
  const later = [];
  /** @type {{done: () => void, fail: (error: Error) => void}[]} */
  const fetches = [];
  /** @type {(() => void)[]} */
  const drawings = [];
  /** @type {unknown[]} */
  const failures = [];
  const draw = () => /** @type {Promise<void>} */ (new Promise((done) => drawings.push(() => done())));
  const refetch = new Refetch(
    () => new Promise((done, fail) => fetches.push({ done: () => done(draw), fail })),
    (error) => failures.push(error),
    { now: () => now, later: (run, ms) => later.push({ at: now + ms, run }) },
  );
  return {
    refetch,
    fetches,
    drawings,
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
  const { refetch, fetches } = stage();
  refetch.ask();
  assert.equal(fetches.length, 1);
});

test("news during a fetch start one more, once it is drawn", async () => {
  const { refetch, fetches, drawings, pass } = stage();
  refetch.ask();
  for (let i = 0; i < 10; i++) refetch.ask();
  await pass(50);
  fetches[0]?.done();
  await pass(0);
  await pass(50);
  assert.equal(fetches.length, 1);
  drawings[0]?.();
  await pass(0);
  assert.equal(fetches.length, 2);
  fetches[1]?.done();
  await pass(0);
  drawings[1]?.();
  await pass(1000);
  assert.equal(fetches.length, 2);
});

for (const [fetching, drawing] of /** @type {[number, number][]} */ ([
  [20, 80],
  [80, 20],
])) {
  test(`neither page nor server is busy for more than half the time: ${fetching} ms and ${drawing} ms`, async () => {
    const { refetch, fetches, drawings, pass } = stage();
    refetch.ask();
    refetch.ask();
    await pass(fetching);
    fetches[0]?.done();
    await pass(0);
    await pass(drawing);
    drawings[0]?.();
    await pass(0);
    await pass(59);
    assert.equal(fetches.length, 1);
    await pass(1);
    assert.equal(fetches.length, 2);
  });
}

test("nothing is fetched while the reader drags, and one fetch follows", async () => {
  const { refetch, fetches, pass } = stage();
  refetch.hold();
  refetch.ask();
  refetch.ask();
  await pass(1000);
  assert.equal(fetches.length, 0);
  refetch.release();
  assert.equal(fetches.length, 1);
});

test("a failure is told and tried again after a while", async () => {
  const { refetch, fetches, failures, pass } = stage();
  refetch.ask();
  fetches[0]?.fail(new Error("no answer"));
  await pass(0);
  assert.equal(failures.length, 1);
  assert.equal(fetches.length, 1);
  await pass(2000);
  assert.equal(fetches.length, 2);
});

test("what fails again and again is tried ever more seldom, and at once more often when there is news", async () => {
  const { refetch, fetches, pass } = stage();
  refetch.ask();
  for (const wait of [2000, 4000, 8000]) {
    fetches.at(-1)?.fail(new Error("not found"));
    await pass(0);
    const before = fetches.length;
    await pass(wait - 1);
    assert.equal(fetches.length, before);
    await pass(1);
    assert.equal(fetches.length, before + 1);
  }
  fetches.at(-1)?.fail(new Error("not found"));
  await pass(0);
  refetch.ask();
  await pass(2000);
  assert.equal(fetches.length, 5);
});
