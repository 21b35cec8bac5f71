/** The editor of a rule: its sentence, where it applies, what is told; tried on stored runs as it is typed. */

import { Builder } from "./builder.js";
import { element, fill, setText } from "./elements.js";
import { AnswerError, fetchJson, root, sendJson } from "./fetching.js";
import { given } from "./rulelist.js";
import { SentenceBox } from "./sentencebox.js";
import { Trials } from "./trials.js";

/** @typedef {import("./rulelist.js").Rule} Rule */
/** @typedef {import("./rulelist.js").RuleGiven} RuleGiven */

/** @type {RuleGiven} */
const NEW = {
  name: "",
  when: "",
  severity: "warning",
  keep_firing: "",
  project: "*",
  run: "*",
  tag: "*",
  text: "",
  channels: [],
  cooldown: "",
  reason: "",
  source: "",
  enabled: true,
};
/** Fields of one line: their names in the API, what they are called, and what may stand there. */
const LINES = /** @type {const} */ ([
  ["project", "Project", "*"],
  ["run", "Run", "*"],
  ["tag", "Tag", "*"],
  ["keep_firing", "Keep firing for", "20 steps"],
  ["cooldown", "Tell again after", "1 h"],
  ["text", "What is told", "{run}: loss {value} at update {step}"],
  ["reason", "Why it is there", ""],
]);

export class RuleEditor {
  #rule;
  #before;
  /** @type {Map<string, HTMLInputElement | HTMLSelectElement>} */ #inputs = new Map();
  /** @type {Map<string, HTMLElement>} */ #faults = new Map();
  #channels = element("span", { class: "channels" }, "none is set up");
  #problem = element("p", { class: "bad", role: "alert" });
  #sentence = new SentenceBox(() => {
    this.#builder.leave();
    this.#changed();
  });
  #builder = new Builder((sentence) => {
    this.#sentence.value = sentence;
    this.#changed();
  });
  #trials = new Trials((faults) => {
    this.#sentence.show(faults.filter(({ field }) => field === "when"));
    for (const [field, told] of this.#faults)
      setText(told, (field !== "name" && faults.find((fault) => fault.field === field)?.message) || "");
  });

  /** @param {Rule | null} rule null: a new one */
  constructor(rule) {
    this.#before = rule;
    this.#rule = rule ? given(rule, {}) : NEW;
    this.root = element("form", { class: "editor" }, ...this.#fields());
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#save();
    });
    void this.#offerChannels();
    this.#sentence.value = this.#rule.when;
    this.#changed();
  }

  #fields() {
    const name = this.#line("name", "Name", "what it is called where it is told");
    if (this.#before?.built_in) name.querySelector("input")?.setAttribute("readonly", "");
    const more = element(
      "details",
      {},
      element("summary", {}, "Where it applies, and what is told"),
      element("div", { class: "lines" }, ...LINES.map(([field, label, hint]) => this.#line(field, label, hint))),
      element("p", { class: "line" }, element("span", {}, "Told on"), this.#channels),
    );
    if (LINES.some(([field]) => this.#rule[field] !== NEW[field])) more.open = true;
    return [
      element("h2", {}, this.#before ? `Rule ${this.#before.name}` : "A new rule"),
      this.#builder.root,
      element("label", { for: "when" }, "Sentence"),
      this.#sentence.root,
      this.#trials.root,
      element("div", { class: "lines" }, name, this.#severity()),
      more,
      this.#problem,
      this.#tools(),
    ];
  }

  /**
   * @param {"name" | typeof LINES[number][0]} field
   * @param {string} label
   * @param {string} hint
   */
  #line(field, label, hint) {
    const input = element("input", { id: `rule-${field}`, placeholder: hint, autocomplete: "off" });
    input.value = this.#rule[field];
    input.addEventListener("input", () => this.#changed());
    const fault = element("small", { class: "bad" });
    this.#inputs.set(field, input);
    this.#faults.set(field, fault);
    return element("p", { class: "line" }, element("label", { for: `rule-${field}` }, label), input, fault);
  }

  #severity() {
    const words = ["info", "warning", "critical"].map((word) => element("option", {}, word));
    const choice = element("select", { id: "rule-severity" }, ...words);
    choice.value = this.#rule.severity;
    this.#inputs.set("severity", choice);
    return element("p", { class: "line" }, element("label", { for: "rule-severity" }, "Severity"), choice);
  }

  #tools() {
    const remove = element("button", { type: "button" }, "Delete");
    remove.addEventListener("click", () => {
      // Asked for twice: it cannot be had back.
      if (remove.dataset.sure) void this.#send(() => sendJson("DELETE", `/api/rules/${this.#before?.id}`));
      remove.dataset.sure = "yes";
      setText(remove, "Delete it for good");
    });
    return element(
      "div",
      { class: "editor-tools" },
      element("button", { type: "submit", class: "main" }, "Save"),
      element("a", { class: "button", href: `${root}/alerts` }, "Cancel"),
      this.#before && !this.#before.built_in && remove,
    );
  }

  async #offerChannels() {
    const answer = await fetchJson("/api/channels").catch(() => null);
    /** @type {string[]} */
    const names = (answer?.items ?? []).map((/** @type {{name: string}} */ { name }) => name);
    const all = [...new Set([...names, ...this.#rule.channels])];
    if (!all.length) return;
    const boxes = all.map((name) => {
      const box = element("input", { type: "checkbox", value: name });
      box.checked = this.#rule.channels.includes(name);
      return element("label", {}, box, name);
    });
    fill(this.#channels, ...boxes);
  }

  /** @returns {RuleGiven} */
  #filled() {
    const filled = Object.fromEntries([...this.#inputs].map(([field, input]) => [field, input.value.trim()]));
    for (const glob of ["project", "run", "tag"]) filled[glob] ||= "*";
    const boxes = /** @type {HTMLInputElement[]} */ ([...this.#channels.querySelectorAll("input")]);
    const channels = boxes.length ? boxes.filter((box) => box.checked).map((box) => box.value) : this.#rule.channels;
    return { ...this.#rule, ...filled, when: this.#sentence.value, channels };
  }

  #changed() {
    setText(this.#problem, "");
    this.#trials.ask(this.#filled());
  }

  async #save() {
    const [method, path] = this.#before
      ? /** @type {const} */ (["PUT", `/api/rules/${this.#before.id}`])
      : /** @type {const} */ (["POST", "/api/rules"]);
    await this.#send(() => sendJson(method, path, this.#filled()));
  }

  /** @param {() => Promise<unknown>} send */
  async #send(send) {
    try {
      await send();
      location.assign(`${root}/alerts`);
    } catch (error) {
      if (!(error instanceof AnswerError)) throw error;
      setText(this.#problem, error.message);
      if (error.field) this.#inputs.get(error.field)?.focus();
    }
  }
}
