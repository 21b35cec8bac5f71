/** What a reader asks of the server at a control. */

import { setText } from "./elements.js";
import { AnswerError } from "./fetching.js";

/**
 * Ask it, and answer with what came; null where it failed: why stays in `problem` until something is asked again there.
 * @template Answer
 * @param {Element} problem beside the control
 * @param {string} failure what it means that it failed: "It was not muted"
 * @param {() => Promise<Answer>} send
 * @returns {Promise<Answer | null>}
 */
export async function attempt(problem, failure, send) {
  setText(problem, "");
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof AnswerError)) throw error;
    setText(problem, `${failure}: ${error.message}.`);
    return null;
  }
}

/**
 * Change what is around a control. Where that hides the one that has the focus, `next` has it then.
 * @param {() => void} change
 * @param {() => HTMLElement | null} next
 */
export function keepFocus(change, next) {
  const focused = document.activeElement;
  change();
  if (focused === null || focused === document.body) return;
  if (!focused.isConnected || !focused.checkVisibility()) next()?.focus({ preventScroll: true });
}
