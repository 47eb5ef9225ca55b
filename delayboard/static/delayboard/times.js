// Keeps <time datetime data-relative> true while the page stays open.

// In milliseconds. From a duration on, the unit to which it is rounded.
const UNITS = [["y", 31_536_000_000], ["d", 86_400_000], ["h", 3_600_000], ["m", 60_000]];
const STEPS = [
  [31_536_000_000, 86_400_000], [86_400_000, 3_600_000], [3_600_000, 60_000], [60_000, 1000],
  [1000, 100], [10, 1], [0, 0.1],
];

function write(ms) {
  if (ms > 0 && ms < 1000) return `${Number(ms.toFixed(1))}ms`;
  const words = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(ms / size);
    ms -= count * size;
    if (count) words.push(`${count}${unit}`);
  }
  if (ms || !words.length) words.push(`${Number((ms / 1000).toFixed(1))}s`);
  return words.join(" ");
}

// A duration in at most two units, as format_span in topology/delays.py writes it.
export function formatSpan(ms) {
  const step = STEPS.find(([least]) => ms >= least)[1];
  return write(Math.floor(ms / step + 0.5) * step);
}

export function relative(then, now = Date.now()) {
  let seconds = Math.floor(Math.abs(now - then) / 1000);
  if (!seconds) return "now";
  // From a minute on by the minute: an age that changes each second distracts.
  if (seconds >= 60) seconds -= seconds % 60;
  const span = formatSpan(1000 * seconds);
  return now > then ? `${span} ago` : `in ${span}`;
}

export function tick(root = document) {
  for (const element of root.querySelectorAll("time[data-relative]")) {
    const then = Date.parse(element.dateTime);
    if (Number.isNaN(then)) continue;
    const text = relative(then);
    if (element.textContent !== text) element.textContent = text;
  }
}

setInterval(() => {
  if (!document.hidden) tick();
}, 1000);
document.addEventListener("visibilitychange", () => tick());
tick();
