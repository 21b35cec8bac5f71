/**
 * The server's news over a WebSocket that comes back by itself.
 *
 * @typedef {object} News
 * @property {"news"} type
 * @property {string} run
 * @property {import("./liveness.js").RunState} state
 * @property {number | null} step
 * @property {number} attempted
 * @property {number} applied
 * @property {number} skipped
 * @property {number | string | null} scale
 * @property {number} at
 * @property {number} last_seen_at
 * @property {Record<string, number>} findings
 * @property {string | null} worst
 * @property {Alert[]} alerts what is told of its alerts, the newest first, for a minute
 *
 * @typedef {object} Alert
 * @property {string} key the same in every tab and message
 * @property {"fired" | "resolved"} happened
 * @property {string} rule
 * @property {"info" | "warning" | "critical"} severity
 * @property {string} title
 * @property {string} body
 * @property {string} url where a click leads, on this server
 * @property {number} at seconds since the epoch
 *
 * @typedef {{type: "hello", server: string, now: number}} Greeting
 * @typedef {{type: "beat", now: number, last_seen_at: number | null}} Beat
 * @typedef {{type: "refetch"}} Anew
 *
 * @typedef {object} Listener
 * @property {(news: News) => void} onNews
 * @property {() => void} onAnew everything shown may be old: after a gap, or when too much happened
 * @property {(beat: Beat) => void} onBeat
 * @property {(connection: import("./liveness.js").Connection) => void} onConnection
 * @property {(now: number) => void} onClock the server's clock, seconds since the epoch
 */

// The server beats every 5 s: after two missed beats the line is dead even if it was never closed.
const DEAD_AFTER_MS = 12_000;
const FIRST_RETRY_MS = 250;
const LONGEST_RETRY_MS = 4000;

/**
 * Watch one run, or all (null), until the page goes.
 * @param {string} root the server's published prefix
 * @param {string | null} run
 * @param {Listener} listener
 */
export function watchLive(root, run, listener) {
  let retry = FIRST_RETRY_MS;
  let opened = false;

  function connect() {
    const address = new URL(`${root}/api/live`, location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    if (run !== null) address.searchParams.set("run", run);
    const socket = new WebSocket(address);
    let watchdog = setTimeout(() => socket.close(), DEAD_AFTER_MS);
    let ended = false;

    socket.addEventListener("message", ({ data }) => {
      clearTimeout(watchdog);
      watchdog = setTimeout(end, DEAD_AFTER_MS);
      retry = FIRST_RETRY_MS;
      take(JSON.parse(data));
    });
    socket.addEventListener("close", end);

    function end() {
      if (ended) return;
      ended = true;
      clearTimeout(watchdog);
      socket.close();
      listener.onConnection("lost");
      // Spread the return of many pages after one restart.
      setTimeout(connect, retry * (0.75 + Math.random() / 2));
      retry = Math.min(retry * 2, LONGEST_RETRY_MS);
    }
  }

  /** @param {News | Greeting | Beat | Anew} message */
  function take(message) {
    if (message.type === "hello") {
      listener.onClock(message.now);
      listener.onConnection("open");
      if (opened) listener.onAnew();
      opened = true;
    } else if (message.type === "news") {
      listener.onClock(message.at);
      listener.onNews(message);
    } else if (message.type === "refetch") listener.onAnew();
    else if (message.type === "beat") {
      listener.onClock(message.now);
      listener.onBeat(message);
    }
  }

  connect();
}
