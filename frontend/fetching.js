/** Answers of the server's API. */

/** An answer that is not one: `status` 0 means that the server could not be reached. */
export class AnswerError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string | null} [field] what of the input is to blame
   */
  constructor(status, message, field = null) {
    super(message);
    this.status = status;
    this.field = field;
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
  return answered(path, { headers: { accept: "application/json" } });
}

/**
 * What the server answers to something sent to it as JSON; null where it has nothing to say.
 * @param {"POST" | "PUT" | "PATCH" | "DELETE"} method
 * @param {string} path below the prefix
 * @param {unknown} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 * @throws {AnswerError}
 */
export async function sendJson(method, path, body, signal) {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return answered(path, {
    method,
    headers,
    body: body === undefined ? null : JSON.stringify(body),
    signal: signal ?? null,
  });
}

/**
 * @param {string} path
 * @param {RequestInit} request
 */
async function answered(path, request) {
  const answer = await fetch(root + path, request).catch(gone);
  if (!answer.ok) {
    const { error } = (await answer.json().catch(() => null)) ?? {};
    throw new AnswerError(answer.status, error?.message ?? `the server answered ${answer.status}`, error?.field);
  }
  // It may go, or be given up, while the answer is under way.
  return answer.status === 204 ? null : answer.json().catch(gone);
}

/** @returns {never} */
function gone() {
  throw new AnswerError(0, "the server does not answer");
}

/**
 * @param {string} run
 * @param {string} [rest]
 */
export function runPath(run, rest = "") {
  return `/api/runs/${encodeURIComponent(run)}${rest}`;
}
