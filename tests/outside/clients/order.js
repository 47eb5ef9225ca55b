// What a client program in Node is asked, and the lines that it writes: as order.py has them.

"use strict";

const { parseArgs } = require("node:util");

const DELAYED = "delayed";
const FAILING = "failing";
const HOPELESS = "hopeless";

function readOrder() {
  const text = (fallback) => ({ type: "string", default: fallback });
  const options = {
    "delays-ms": text(""),
    failing: text("0"),
    hopeless: text("0"),
    rounds: text("2"),
    "wait-ms": text("400"),
    idle: { type: "boolean", default: false },
  };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  const [url, prefix] = positionals;
  return {
    url,
    prefix,
    delaysMs: values["delays-ms"].split(",").filter(Boolean).map(Number),
    atOnce: [
      ...Array(Number(values.failing)).fill(FAILING),
      ...Array(Number(values.hopeless)).fill(HOPELESS),
    ],
    rounds: Number(values.rounds),
    waitMs: Number(values["wait-ms"]),
    isConsuming: !values.idle,
  };
}

function fails(order, kind, attempt) {
  return kind === HOPELESS || (kind === FAILING && attempt <= order.rounds);
}

function write(event, id = "", attempt = 0, dueAtMs = null) {
  const line = { event, id, attempt, due_at_ms: dueAtMs, at_ms: Date.now() };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

// Run main, then wait for the end of standard input, and end with what main returned.
function run(main) {
  main(readOrder())
    .then((end) => {
      process.stdin.resume();
      process.stdin.on("end", () => end().then(() => process.exit(0)));
    })
    .catch((error) => {
      process.stderr.write(`${error.stack}\n`);
      process.exit(1);
    });
}

module.exports = { DELAYED, fails, run, write };
