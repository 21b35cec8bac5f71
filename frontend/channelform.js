/** The form that sets up a channel. What is secret goes to the server from here and is forgotten. */

import { attempt } from "./attempt.js";
import { element, setText } from "./elements.js";
import { sendJson } from "./fetching.js";

const SECRET_BYTES = 32;
const HINTS = {
  webhook: "https://hooks.example.com/scalescope",
  apprise: "slack://TOKEN_A/TOKEN_B/TOKEN_C/#channel",
};

export class ChannelForm {
  #name = field("channel-name", { placeholder: "on call", required: true, maxlength: 64 });
  #kind = element(
    "select",
    { id: "channel-kind" },
    element("option", { value: "webhook" }, "webhook, signed"),
    element("option", { value: "apprise" }, "service: Slack, Discord, e-mail, …"),
  );
  #url = field("channel-url", { required: true });
  #secret = field("channel-secret", { placeholder: "whsec_…" });
  #make = element("button", { type: "button" }, "Make one");
  #signed;
  #problem = element("p", { class: "bad", role: "alert" });
  #done = element("p", { class: "note", role: "status" });
  #onAdded;

  /** @param {() => void} onAdded */
  constructor(onAdded) {
    this.#onAdded = onAdded;
    this.#signed = line("Secret", this.#secret, this.#make);
    this.root = element(
      "form",
      { class: "editor" },
      element(
        "div",
        { class: "lines" },
        line("Name", this.#name),
        line("Kind", this.#kind),
        line("Address", this.#url),
        this.#signed,
      ),
      element("p", { class: "note" }, "Address and secret are kept by the server and never shown again."),
      this.#problem,
      element(
        "div",
        { class: "editor-tools" },
        element("button", { type: "submit", class: "main" }, "Add the channel"),
      ),
      this.#done,
    );
    this.#kind.addEventListener("change", () => this.#show());
    this.#make.addEventListener("click", () => {
      this.#secret.value = newSecret();
    });
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#add();
    });
    this.#show();
  }

  #show() {
    const kind = /** @type {keyof typeof HINTS} */ (this.#kind.value);
    this.#url.placeholder = HINTS[kind];
    this.#signed.hidden = kind !== "webhook";
  }

  async #add() {
    setText(this.#done, "");
    const [kind, url, secret] = [this.#kind.value, this.#url.value.trim(), this.#secret.value.trim()];
    const config = kind === "webhook" ? { kind, url, secret } : { kind, url };
    const name = this.#name.value.trim();
    const added = await attempt(this.#problem, "It was not added", () =>
      sendJson("POST", "/api/channels", { name, config }),
    );
    if (!added) return;
    for (const input of [this.#name, this.#url, this.#secret]) input.value = "";
    setText(this.#done, `${name} is added: send a test.`);
    this.#onAdded();
  }
}

/** As Standard Webhooks wants it: what both sides sign with. */
function newSecret() {
  const bytes = crypto.getRandomValues(new Uint8Array(SECRET_BYTES));
  return `whsec_${btoa(String.fromCharCode(...bytes))}`;
}

/**
 * @param {string} id
 * @param {Record<string, string | number | boolean>} more
 */
function field(id, more) {
  return element("input", { id, autocomplete: "off", spellcheck: "false", ...more });
}

/**
 * @param {string} label
 * @param {HTMLElement} input
 * @param {HTMLElement} [beside]
 */
function line(label, input, beside) {
  const both = beside ? element("span", { class: "beside" }, input, beside) : input;
  return element("p", { class: "line" }, element("label", { for: input.id }, label), both);
}
