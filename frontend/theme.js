/**
 * Light or dark: the system's choice until the reader makes one, which this browser remembers.
 *
 * @typedef {"light" | "dark"} Theme
 */

const KEY = "scalescope.theme";

/** @returns {Theme} */
export function currentTheme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/**
 * Let `button` switch, and follow the system while nothing was chosen.
 * @param {HTMLElement} button
 * @param {() => void} onChange
 */
export function startTheme(button, onChange) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  button.addEventListener("click", () => {
    const next = currentTheme() === "dark" ? "light" : "dark";
    keep(next);
    apply(next, onChange);
  });
  system.addEventListener("change", () => {
    if (kept() === null) apply(system.matches ? "dark" : "light", onChange);
  });
}

/**
 * @param {Theme} theme
 * @param {() => void} onChange
 */
function apply(theme, onChange) {
  document.documentElement.dataset.theme = theme;
  onChange();
}

/** @returns {string | null} */
function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** @param {Theme} theme */
function keep(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Storage may be forbidden: the choice then lasts as long as the page.
  }
}
