/**
 * Elements made from text: what comes from a trainer becomes a text node or an attribute, never markup.
 *
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/**
 * An element. Properties that begin with "on" are listeners, the others attributes; null and false are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | null | undefined | EventListener>} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, String(value));
  }
  append(made, children);
  return made;
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {...SVGElement} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/**
 * Replace what `parent` holds.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/**
 * Change an element's text only if it differs, so that nothing is selected, read or painted anew for nothing.
 * @param {Element} target
 * @param {string} text
 */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * `text` with each power such as "2^19" raised as people write it.
 * @param {string} text
 * @returns {Child[]}
 */
export function raisedText(text) {
  return text.split(/\b(2\^-?\d{1,3})\b/).map((part, i) => (i % 2 ? raised(part) : part));
}

/**
 * Like `setText`, with powers raised.
 * @param {HTMLElement} target
 * @param {string} text
 */
export function setRaised(target, text) {
  if (target.dataset.text === text) return;
  target.dataset.text = text;
  fill(target, ...raisedText(text));
}

/**
 * The element with this id, which the page's shell promises.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element called ${id}`);
  return found;
}

/** @param {string} text such as 2^19 */
function raised(text) {
  // Read aloud and copied, it stays "2^19".
  const caret = element("span", { class: "caret" }, "^");
  return element("span", {}, "2", caret, element("sup", {}, text.slice(2).replace("-", "−")));
}

/**
 * @param {Element} parent
 * @param {Child[]} children
 */
function append(parent, children) {
  for (const child of children) {
    if (child instanceof Node) parent.append(child);
    else if (child !== null && child !== undefined && child !== false) parent.append(String(child));
  }
}
