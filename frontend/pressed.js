/**
 * What is on the page must not change while the pointer is pressed: a drag would be cut off, and a click on an
 * element that was made anew in between is lost.
 */

// Plotly decides between a click and the end of a drag a moment after the pointer is up.
const SETTLE_MS = 60;

/**
 * Tell each press of the pointer and its end, for as long as the page lives.
 * @param {() => void} onPress
 * @param {() => void} onRelease
 */
export function watchPointer(onPress, onRelease) {
  addEventListener("pointerdown", pressed, { capture: true });

  function pressed() {
    onPress();
    const ends = new AbortController();
    const options = { capture: true, signal: ends.signal };
    const released = () => {
      ends.abort();
      setTimeout(onRelease, SETTLE_MS);
    };
    addEventListener("pointerup", released, options);
    addEventListener("pointercancel", released, options);
    // A scroll bar and an open list keep the end of a press to themselves.
    addEventListener("pointermove", ({ buttons }) => buttons === 0 && released(), options);
  }
}
