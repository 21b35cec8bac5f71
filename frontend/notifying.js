/** The browser's own notifications of alerts, on every page that is open, once somebody has allowed them. */

import { setText } from "./elements.js";

/** @param {import("./live.js").Alert} alert */
export function notify({ key, title, body, url }) {
  if (!("Notification" in window) || Notification.permission !== "granted") return;
  // By its tag the browser tells one alert once, however many pages are open.
  const shown = new Notification(title, { body, tag: key });
  shown.addEventListener("click", () => {
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
