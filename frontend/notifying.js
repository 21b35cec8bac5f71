/** The browser's own notifications of alerts, on every page that is open, once somebody has allowed them. */

import { setText } from "./elements.js";

const KEY = "scalescope.notified";
// News repeat an alert for a minute: by then so many others have not come.
const KEPT = 200;

/** @param {import("./live.js").Alert} alert */
export function notify({ key, title, body, url }) {
  if (!("Notification" in window) || Notification.permission !== "granted" || !isNew(key)) return;
  const shown = made(title, { body, tag: key });
  shown?.addEventListener("click", () => {
    shown.close();
    window.focus();
    location.assign(url);
  });
}

/**
 * A button that asks for leave, as browsers want it: on a click.
 * @param {HTMLButtonElement} button
 */
export function offerNotifications(button) {
  if (!("Notification" in window)) return;
  const tell = () => {
    const { permission } = Notification;
    button.hidden = permission === "granted";
    button.disabled = permission === "denied";
    setText(
      button,
      permission === "denied" ? "This browser does not let this page notify" : "Notify me in this browser",
    );
  };
  button.addEventListener("click", async () => {
    await Notification.requestPermission();
    tell();
  });
  tell();
}

/**
 * Shown, where the browser lets a page do that. By its tag one alert is one notification, however many pages show it.
 * @param {string} title
 * @param {NotificationOptions} given
 */
function made(title, given) {
  try {
    return new Notification(title, given);
  } catch (error) {
    // Chrome on Android has the class and refuses to make one: there only a service worker may notify.
    if (error instanceof TypeError) return null;
    throw error;
  }
}

/**
 * Whether no page of this browser has shown it yet: the one that a click opens hears of the alert again.
 * @param {string} key
 */
function isNew(key) {
  try {
    /** @type {string[]} */
    const known = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    if (known.includes(key)) return false;
    localStorage.setItem(KEY, JSON.stringify([...known, key].slice(-KEPT)));
  } catch {
    // Storage may be forbidden or hold something else; then each page knows of its own alone.
  }
  return true;
}
