/**
 * The common sentences of rules, as forms with blanks to fill in. Pure.
 *
 * @typedef {object} Blank
 * @property {string} name
 * @property {"number" | "text" | string[]} kind a list: one of these
 * @property {string} value what stands there at first
 * @property {string} label what it is, for those who do not see where it stands
 * @property {string[]} [known] of a text: what may stand there beside other things
 *
 * @typedef {object} Shape
 * @property {string} title
 * @property {(string | Blank)[]} parts words and blanks, in the order in which they are read
 * @property {(filled: Record<string, string>) => string} write the sentence, in the language of rules
 *
 * @typedef {object} Names what sentences may name on any run, as the server tells it
 * @property {{name: string, quantity: string}[]} series
 * @property {{name: string, quantity: string, rows: "layer" | "module"}[]} measures
 * @property {string[]} compared series in which ranks can be compared
 * @property {string[]} findings codes
 */

/**
 * The shapes, with the names that this server's sentences may use.
 * @param {Names} names
 * @returns {Shape[]}
 */
export function shapesOf(names) {
  const series = names.series.map(({ name }) => name);
  // What a share is asked of.
  const shares = names.measures.filter(({ quantity, rows }) => quantity === "share" && rows === "layer");
  const measures = shares.map(({ name }) => name);
  return [
    {
      title: "the scale changes often",
      parts: [
        "the scale changes",
        number("n", "6", "changes"),
        "times or more in",
        number("w", "200", "updates"),
        "updates",
      ],
      write: ({ n, w }) => `when changes(scale, ${w} steps) >= ${n}`,
    },
    {
      title: "updates are skipped",
      parts: [number("n", "8", "skipped updates"), "of the last", number("m", "10", "updates"), "updates are skipped"],
      write: ({ n, m }) => `when skipped in ${n} of ${m} updates`,
    },
    {
      title: "the scale is low",
      parts: ["the scale is below", number("x", "1", "scale"), ""],
      write: ({ x }) => `when scale < ${x}`,
    },
    {
      title: "a series is too high or too low",
      parts: [text("s", "loss", "series", series), choice("o", [">", "<"], "comparison"), text("x", "10", "value")],
      write: ({ s, o, x }) => `when ${named(s)} ${o} ${x}`,
    },
    {
      title: "a series jumps",
      parts: [
        text("s", "grad_norm", "series", series),
        "is over",
        number("n", "4", "times"),
        "times its median of",
        number("w", "500", "updates"),
        "updates",
      ],
      write: ({ s, n, w }) => `when ${named(s)} > ${n} * median(${named(s)}, ${w} steps)`,
    },
    {
      title: "a layer loses precision",
      parts: [
        choice("s", measures, "measure"),
        "of a layer called",
        text("l", "*", "layers"),
        "is over",
        number("p", "20", "percent"),
        "%",
      ],
      write: ({ s, l, p }) => `when max by layer(${s}${l === "*" || !l ? "" : `{layer=${JSON.stringify(l)}}`}) > ${p}%`,
    },
    {
      title: "a series is not finite",
      parts: [text("s", "loss", "series", series), "is infinite or NaN"],
      write: ({ s }) => `when ${named(s)} is not finite`,
    },
    {
      title: "a finding is open",
      parts: ["the finding", choice("c", names.findings, "finding"), "is open"],
      write: ({ c }) => `when finding(${c})`,
    },
    {
      title: "ranks disagree",
      parts: ["ranks tell different values of", choice("s", names.compared, "series"), ""],
      write: ({ s }) => `when rank disagreement(${s})`,
    },
    {
      title: "nothing comes any more",
      parts: ["no update for", number("t", "10", "minutes"), "min"],
      write: ({ t }) => `when no update for ${t} min`,
    },
  ];
}

/**
 * The sentence of a shape, with how long it must hold: "50 steps", "5 min", or nothing.
 * @param {Shape} shape
 * @param {Record<string, string>} filled what stands in its blanks, by their names
 * @param {string} [hold]
 */
export function written(shape, filled, hold = "") {
  return shape.write(filled) + (hold.trim() && ` for ${hold.trim()}`);
}

/**
 * What stands in the blanks at first.
 * @param {Shape} shape
 * @returns {Record<string, string>}
 */
export function blanks({ parts }) {
  return Object.fromEntries(parts.filter((part) => typeof part !== "string").map(({ name, value }) => [name, value]));
}

/**
 * A series' name as the language takes it: one with other signs than a word has stands in quotes.
 * @param {string | undefined} name
 */
function named(name = "") {
  return /^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name);
}

/**
 * @param {string} name
 * @param {string} value
 * @param {string} label
 * @returns {Blank}
 */
function number(name, value, label) {
  return { name, kind: "number", value, label };
}

/**
 * @param {string} name
 * @param {string} value
 * @param {string} label
 * @param {string[]} [known]
 * @returns {Blank}
 */
function text(name, value, label, known = []) {
  return { name, kind: "text", value, label, known };
}

/**
 * @param {string} name
 * @param {string[]} kind
 * @param {string} label
 * @returns {Blank}
 */
function choice(name, kind, label) {
  return { name, kind, value: kind[0] ?? "", label };
}
