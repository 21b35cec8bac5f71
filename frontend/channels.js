/** Where alerts are told, and of which projects nothing is told for a while. */

import { AllRunsPage } from "./allruns.js";
import { ChannelCard } from "./channelcard.js";
import { ChannelForm } from "./channelform.js";
import { byId, element, fill } from "./elements.js";
import { fetchJson, sendJson } from "./fetching.js";
import { SilenceCard, SilenceForm } from "./silences.js";

/** @typedef {import("./channelstate.js").Channel} Channel */
/** @typedef {import("./silences.js").Silence} Silence */

// What becomes of a message is known some time after the news of it.
const EVERY_MS = 5000;

const page = new AllRunsPage({ load, onNews: (told) => told && page.ask() });
const now = () => page.now;
/** @type {Map<string, ChannelCard>} */
let channels = new Map();
/** @type {Map<number, SilenceCard>} */
let silences = new Map();

byId("add-channel").append(new ChannelForm(() => page.ask()).root);
byId("add-silence").append(new SilenceForm(now, () => page.ask()).root);
page.start();
setInterval(() => document.visibilityState === "visible" && page.ask(), EVERY_MS);

async function load() {
  const [told, silenced] = await Promise.all([fetchJson("/api/channels"), fetchJson("/api/silences")]);
  return () => {
    channels = cardsOf(told.items, channels, ({ name }) => name, makeChannel);
    silences = cardsOf(silenced.items, silences, ({ id }) => id, makeSilence);
    show(
      byId("channels"),
      [...channels.values()],
      "No channel is set up: alerts are shown on these pages, and told to nobody.",
    );
    show(byId("silences"), [...silences.values()], "Nothing is silenced.");
  };
}

/** @param {Channel} channel */
function makeChannel(channel) {
  return new ChannelCard(channel, () => page.ask(), now);
}

/** @param {Silence} silence */
function makeSilence(silence) {
  const end = async () => {
    await sendJson("DELETE", `/api/silences/${silence.id}`);
    page.ask();
  };
  return new SilenceCard(silence, end, now);
}

/**
 * A card for each item; the one that was there stays the same element.
 * @template Item
 * @template Key
 * @template {{show: (item: Item) => void}} Card
 * @param {Item[]} items
 * @param {Map<Key, Card>} before
 * @param {(item: Item) => Key} key
 * @param {(item: Item) => Card} make
 * @returns {Map<Key, Card>}
 */
function cardsOf(items, before, key, make) {
  return new Map(
    items.map((item) => {
      const card = before.get(key(item)) ?? make(item);
      card.show(item);
      return [key(item), card];
    }),
  );
}

/**
 * @param {HTMLElement} list
 * @param {{root: HTMLElement}[]} cards
 * @param {string} nothing
 */
function show(list, cards, nothing) {
  const roots = cards.map(({ root }) => root);
  if (!roots.length) fill(list, element("p", { class: "card nothing" }, nothing));
  else if (roots.length !== list.children.length || roots.some((root, i) => root !== list.children[i]))
    list.replaceChildren(...roots);
}
