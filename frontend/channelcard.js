/** One channel: where it leads, how its last message fared, and a test of it. Nothing of its secrets reaches a page. */

import { attempt } from "./attempt.js";
import { countsText, lastText, trialText } from "./channelstate.js";
import { element, setText } from "./elements.js";
import { sendJson } from "./fetching.js";

/** @typedef {import("./channelstate.js").Channel} Channel */

const KINDS = { webhook: "webhook", apprise: "service", command: "command" };

export class ChannelCard {
  #channel;
  #onChange;
  #now;
  #turn = element("input", { type: "checkbox", role: "switch" });
  #turned = element("span");
  #target = element("span", { class: "mono" });
  #last = element("p", { class: "last" });
  #counts = element("p", { class: "note" });
  #test = element("button", { type: "button" }, "Send a test");
  #remove = element("button", { type: "button" }, "Delete");
  #outcome = element("p", { class: "outcome", role: "status" });
  #problem = element("p", { class: "bad", role: "alert" });

  /**
   * @param {Channel} channel
   * @param {() => void} onChange
   * @param {() => number} now seconds since the epoch, by the server's clock
   */
  constructor(channel, onChange, now) {
    this.#channel = channel;
    this.#onChange = onChange;
    this.#now = now;
    this.#turn.setAttribute("aria-label", `${channel.name} is on`);
    this.#test.setAttribute("aria-label", `Send a test to ${channel.name}`);
    // What the settings file names is changed there.
    const own = channel.kind !== "command";
    this.root = element(
      "article",
      { class: "card channel", "data-channel": channel.name },
      element("header", {}, element("h3", {}, channel.name), element("label", {}, own && this.#turn, this.#turned)),
      element("p", { class: "where" }, KINDS[channel.kind] ?? channel.kind, this.#target),
      this.#last,
      this.#counts,
      element("div", { class: "channel-tools" }, this.#test, own && this.#remove),
      this.#outcome,
      this.#problem,
    );
    this.#turn.addEventListener("change", () => void this.#switch());
    this.#test.addEventListener("click", () => void this.#try());
    this.#remove.addEventListener("click", () => void this.#delete());
    this.show(channel);
  }

  /** @param {Channel} channel as it is now */
  show(channel) {
    this.#channel = channel;
    this.#turn.checked = channel.enabled;
    setText(this.#turned, channel.enabled ? "on" : "off");
    setText(
      this.#target,
      channel.target === "a command of the settings file" ? "of the settings file" : channel.target,
    );
    setText(this.#last, lastText(channel, this.#now()));
    this.#last.dataset.arrived = String(channel.arrived);
    setText(this.#counts, countsText(channel));
    this.root.toggleAttribute("data-off", !channel.enabled);
  }

  async #switch() {
    const enabled = this.#turn.checked;
    const failure = enabled ? "It is still off" : "It is still on";
    const path = this.#path();
    const channel = await attempt(this.#problem, failure, () => sendJson("PATCH", path, { enabled }));
    this.show(channel ?? this.#channel);
    this.#onChange();
  }

  async #try() {
    // A disabled button would lose the focus.
    if (this.#test.getAttribute("aria-disabled")) return;
    this.#test.setAttribute("aria-disabled", "true");
    this.#outcome.removeAttribute("data-arrived");
    setText(this.#outcome, "Sending a test…");
    const failure = "The test was not sent";
    const trial = await attempt(this.#problem, failure, () => sendJson("POST", `${this.#path()}/test`));
    this.#test.removeAttribute("aria-disabled");
    if (trial) this.#outcome.dataset.arrived = String(trial.delivered);
    setText(this.#outcome, trial ? trialText(trial) : "");
  }

  async #delete() {
    if (!this.#remove.dataset.sure) {
      // Asked for twice: its address and secret cannot be had back.
      this.#remove.dataset.sure = "yes";
      setText(this.#remove, "Delete it for good");
      return;
    }
    const gone = await attempt(this.#problem, "It is still there", async () => {
      await sendJson("DELETE", this.#path());
      return true;
    });
    if (gone) this.#onChange();
  }

  #path() {
    return `/api/channels/${encodeURIComponent(this.#channel.name)}`;
  }
}
