import assert from "node:assert/strict";
import { test } from "node:test";

const shown = [];
const kept = new Map();
globalThis.window = globalThis;
globalThis.localStorage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
globalThis.Notification = class extends EventTarget {
  static permission = "granted";
  constructor(title, { tag }) {
    super();
    shown.push([title, tag]);
  }
};
// Each page has a module of its own, and one storage with the others.
const pages = await Promise.all([1, 2].map((page) => import(`../../frontend/notifying.js?page=${page}`)));
const alert = (key) => ({ key, title: `alert ${key}`, body: "", url: "/" });

test("what one page of a browser has shown no other shows again", () => {
  for (const { notify } of pages) for (const key of ["a", "b"]) notify(alert(key));
  assert.deepEqual(shown, [
    ["alert a", "a"],
    ["alert b", "b"],
  ]);
});

test("without a storage each page knows of its own alone, and tells", () => {
  kept.set("scalescope.notified", "{}");
  shown.length = 0;
  pages[0].notify(alert("c"));
  assert.deepEqual(shown, [["alert c", "c"]]);
});

test("where a page may make no notification nothing is shown, and nothing thrown", () => {
  globalThis.Notification = class {
    static permission = "granted";
    constructor() {
      throw new TypeError("Illegal constructor");
    }
  };
  pages[0].notify(alert("d"));
});
