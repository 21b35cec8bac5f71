/** The editor of a rule: its sentence, where it applies, what is told; tried on stored runs as it is typed. */

import { Builder } from "./builder.js";
import { element, fill, setText } from "./elements.js";
import { AnswerError, fetchJson, root, runPath, sendJson } from "./fetching.js";
import { SentenceBox } from "./sentencebox.js";
import { Trials } from "./trials.js";

/** @typedef {import("./rule.js").Rule} Rule */
/** @typedef {import("./rule.js").RuleGiven} RuleGiven */

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
  #channels = element("span", { class: "channels" });
  #everywhere = element("small", { class: "note" });
  #more = element("details");
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

  /**
   * @param {Rule | null} rule null: a new one
   * @param {string | null} [on] the run that a new one is tried on first
   */
  constructor(rule, on = null) {
    this.#before = rule;
    this.#rule = rule ? given(rule) : NEW;
    if (on !== null) this.#trials.choose(on);
    this.root = element("form", { class: "editor" }, ...this.#fields());
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#save();
    });
    void this.#offerChannels();
    if (on !== null) void this.#applyTo(on);
    this.#sentence.value = this.#rule.when;
    this.#changed();
  }

  #fields() {
    const name = this.#line("name", "Name", "what it is called where it is told");
    if (this.#before?.built_in) name.querySelector("input")?.setAttribute("readonly", "");
    this.#more.append(
      element("summary", {}, "Where it applies, and what is told"),
      element("div", { class: "lines" }, ...LINES.map(([field, label, hint]) => this.#line(field, label, hint))),
      element("p", { class: "line" }, element("span", {}, "Told on"), this.#channels, this.#everywhere),
    );
    if (LINES.some(([field]) => this.#rule[field] !== NEW[field])) this.#more.open = true;
    return [
      element("h2", {}, this.#before ? `Rule ${this.#before.name}` : "A new rule"),
      this.#builder.root,
      element("label", { for: "when" }, "Sentence"),
      this.#sentence.root,
      this.#trials.root,
      element("div", { class: "lines" }, name, this.#severity()),
      this.#more,
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
    choice.addEventListener("change", () => this.#showEverywhere());
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

  /**
   * Whoever comes from a run means that project, unless they say otherwise.
   * @param {string} run
   */
  async #applyTo(run) {
    const found = await fetchJson(runPath(run)).catch(() => null);
    const input = this.#inputs.get("project");
    // Its name stands for itself alone only where nothing in it is a glob.
    if (!found || !input || input.value !== NEW.project || /[*?[\]]/.test(found.project)) return;
    input.value = found.project;
    this.#more.open = true;
    this.#changed();
  }

  async #offerChannels() {
    const answer = await fetchJson("/api/channels").catch(() => null);
    /** @type {{name: string, enabled: boolean}[]} */
    const channels = answer?.items ?? [];
    const off = new Set(channels.filter(({ enabled }) => !enabled).map(({ name }) => name));
    const names = channels.map(({ name }) => name);
    const all = [...new Set([...names, ...this.#rule.channels])];
    const setUp = element("a", { href: `${root}/alerts/channels` }, "Set one up");
    if (!all.length) {
      fill(this.#everywhere, "There is no channel yet: it is shown on these pages alone. ", setUp);
      return;
    }
    const boxes = all.map((name) => {
      const box = element("input", { type: "checkbox", value: name });
      box.checked = this.#rule.channels.includes(name);
      box.addEventListener("change", () => this.#showEverywhere());
      return element("label", {}, box, off.has(name) ? `${name} (off)` : name);
    });
    fill(this.#channels, ...boxes);
    this.#showEverywhere();
  }

  /** What it means that no channel is ticked. */
  #showEverywhere() {
    const boxes = [...this.#channels.querySelectorAll("input")];
    if (!boxes.length) return;
    const none =
      this.#inputs.get("severity")?.value === "info"
        ? "None is ticked: of severity info, no channel is told."
        : "None is ticked: every channel that is set up and on is told, commands of the settings file aside.";
    setText(this.#everywhere, boxes.some(({ checked }) => checked) ? "" : none);
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
      ? /** @type {const} */ (["PUT", `/api/rules/${this.#before.id}?revision=${this.#before.revision}`])
      : /** @type {const} */ (["POST", "/api/rules"]);
    await this.#send(() => sendJson(method, path, this.#filled()));
  }

  /** Somebody was faster: say what the rule says now, and let the reader decide. */
  async #showTheirs() {
    if (!this.#before) return;
    /** @type {Rule | null} */
    const theirs = await fetchJson(`/api/rules/${this.#before.id}`).catch(() => null);
    if (theirs === null) return;
    this.#before = theirs;
    const changed = differences(this.#filled(), theirs);
    fill(
      this.#problem,
      "Somebody has changed this rule since you opened it, and nothing was saved. ",
      changed.length ? "It says now: " : "It says now what you say.",
      ...changed
        .flatMap(([field, value]) => [`${field} `, element("code", {}, value || "(nothing)"), ", "])
        .slice(0, -1),
      changed.length && ". Save again to put yours in its place, or ",
      changed.length && element("a", { href: location.href }, "take theirs"),
      changed.length && ".",
    );
  }

  /** @param {() => Promise<unknown>} send */
  async #send(send) {
    try {
      await send();
      location.assign(`${root}/alerts`);
    } catch (error) {
      if (!(error instanceof AnswerError)) throw error;
      setText(this.#problem, `It was not saved: ${error.message}.`);
      if (error.field === "revision") await this.#showTheirs();
      if (error.field) this.#inputs.get(error.field)?.focus();
    }
  }
}

/**
 * What the API takes of a rule.
 * @param {Rule} rule
 * @returns {RuleGiven}
 */
function given(rule) {
  const known = /** @type {Record<string, unknown>} */ (/** @type {unknown} */ (rule));
  return /** @type {RuleGiven} */ (Object.fromEntries(Object.keys(NEW).map((field) => [field, known[field]])));
}

/**
 * The fields in which a rule says something else than `mine`, with what it says.
 * @param {RuleGiven} mine
 * @param {Rule} theirs
 * @returns {[string, string][]}
 */
function differences(mine, theirs) {
  const [one, other] = [mine, given(theirs)].map((rule) =>
    Object.entries(rule).map(([field, value]) => [field, String(value)]),
  );
  const before = new Map(/** @type {[string, string][]} */ (one));
  return /** @type {[string, string][]} */ (other).filter(([field, value]) => before.get(field) !== value);
}
