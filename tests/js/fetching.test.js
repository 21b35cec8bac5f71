import assert from "node:assert/strict";
import { test } from "node:test";

// What a page's shell tells its scripts.
globalThis.document = { documentElement: { dataset: { root: "" } } };
const { AnswerError, fetchJson } = await import("../../frontend/fetching.js");

test("an answer that is given up or cut off while it is under way is told as one that did not come", async () => {
  const cut = new ReadableStream({ start: (body) => body.error(new DOMException("given up", "AbortError")) });
  globalThis.fetch = async () => new Response(cut);
  await assert.rejects(fetchJson("/api/runs"), (error) => error instanceof AnswerError && error.status === 0);
});
