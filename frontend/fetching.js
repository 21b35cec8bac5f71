/** Answers of the server's API. */

/** An answer that is not one: `status` 0 means that the server could not be reached. */
export class AnswerError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server's published prefix. */
export const root = document.documentElement.dataset.root ?? "";

/**
 * The JSON at `path` below the prefix; the caller says what it expects.
 * @param {string} path
 * @returns {Promise<any>}
 * @throws {AnswerError}
 */
export async function fetchJson(path) {
  const answer = await fetch(root + path, { headers: { accept: "application/json" } }).catch(() => {
    throw new AnswerError(0, "the server does not answer");
  });
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new AnswerError(answer.status, body?.error?.message ?? `the server answered ${answer.status}`);
  }
  return answer.json();
}

/**
 * @param {string} run
 * @param {string} [rest]
 */
export function runPath(run, rest = "") {
  return `/api/runs/${encodeURIComponent(run)}${rest}`;
}
