/**
 * Projects of which nothing is told for a while: those that there are, and a new one.
 *
 * @typedef {object} Silence
 * @property {number} id
 * @property {string} project a glob
 * @property {number} starts_at seconds since the epoch
 * @property {number} ends_at
 * @property {string} reason
 */

import { attempt } from "./attempt.js";
import { element, setText } from "./elements.js";
import { fetchJson, sendJson } from "./fetching.js";
import { dated, duration } from "./format.js";
import { Until } from "./until.js";

export class SilenceCard {
  #now;
  #time = element("span", { class: "note" });
  #problem = element("p", { class: "bad", role: "alert" });

  /**
   * @param {Silence} silence
   * @param {() => Promise<void>} end
   * @param {() => number} now seconds since the epoch, by the server's clock
   */
  constructor({ project, reason }, end, now) {
    this.#now = now;
    const stop = element("button", { type: "button", "aria-label": `End the silence of ${project}` }, "End it now");
    stop.addEventListener("click", () => void attempt(this.#problem, "It goes on", end));
    this.root = element(
      "article",
      { class: "card silence", "data-silence": project },
      element("p", {}, element("b", {}, project === "*" ? "every project" : project), this.#time),
      stop,
      reason && element("p", { class: "reason" }, reason),
      this.#problem,
    );
  }

  /** @param {Silence} silence */
  show(silence) {
    setText(this.#time, silenceText(silence, this.#now()));
  }
}

export class SilenceForm {
  #project = element("input", {
    id: "silence-project",
    list: "projects",
    required: true,
    maxlength: 512,
    placeholder: "team-*",
  });
  #projects = element("datalist", { id: "projects" });
  #until = new Until("Silence");
  #reason = element("input", {
    id: "silence-reason",
    maxlength: 2000,
    placeholder: "the cluster moves",
    autocomplete: "off",
  });
  #problem = element("p", { class: "bad", role: "alert" });
  #now;
  #onAdded;

  /**
   * @param {() => number} now
   * @param {() => void} onAdded
   */
  constructor(now, onAdded) {
    this.#now = now;
    this.#onAdded = onAdded;
    this.root = element(
      "form",
      { class: "editor" },
      element(
        "div",
        { class: "lines" },
        element(
          "p",
          { class: "line" },
          element("label", { for: "silence-project" }, "Project, * for any part of it"),
          this.#project,
        ),
        element("p", { class: "line" }, element("span", {}, "How long"), this.#until.root),
        element("p", { class: "line" }, element("label", { for: "silence-reason" }, "Reason"), this.#reason),
      ),
      this.#projects,
      this.#problem,
      element("div", { class: "editor-tools" }, element("button", { type: "submit", class: "main" }, "Silence it")),
    );
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#add();
    });
    void this.#offer();
  }

  async #offer() {
    const answer = await fetchJson("/api/runs?limit=200").catch(() => null);
    const projects = new Set((answer?.items ?? []).map((/** @type {{project: string}} */ { project }) => project));
    this.#projects.append(...[...projects].sort().map((value) => element("option", { value: String(value) })));
  }

  async #add() {
    const ends_at = this.#until.chosen(this.#now());
    if (ends_at === null) return;
    const given = { project: this.#project.value.trim(), ends_at, reason: this.#reason.value.trim() };
    const added = await attempt(this.#problem, "It was not silenced", () => sendJson("POST", "/api/silences", given));
    if (!added) return;
    this.#project.value = "";
    this.#reason.value = "";
    this.#onAdded();
  }
}

/**
 * @param {Pick<Silence, "starts_at" | "ends_at">} silence
 * @param {number} now
 */
export function silenceText({ starts_at, ends_at }, now) {
  const until = `until ${dated(ends_at)}`;
  if (starts_at > now) return `from ${dated(starts_at)} ${until}`;
  return `${until}, for another ${duration(Math.max(ends_at - now, 0))}`;
}
