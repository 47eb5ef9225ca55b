// Keeps <time datetime data-relative> true while the page stays open.

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

export function span(seconds) {
  let left = Math.floor(Math.abs(seconds));
  const first = UNITS.findIndex(([, size]) => left >= size);
  if (first === -1) return "0s";
  const words = [];
  for (const [unit, size] of UNITS.slice(first, first + (first < 2 ? 2 : 1))) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count) words.push(`${count}${unit}`);
  }
  return words.join(" ");
}

export function relative(then, now = Date.now()) {
  const seconds = (now - then) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${span(seconds)} ago` : `in ${span(seconds)}`;
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
