// Diagrams can be zoomed by buttons, by + - 0 and by Ctrl with the wheel, and moved by dragging;
// the arrow keys scroll them, as they do with anything that is larger than its frame.

const LEAST = 0.5;
const MOST = 4;
const STEP = 1.25;
const zooms = new Map();
const prepared = new WeakSet();

const frameOf = (inside) => inside.closest(".scroll") ?? inside.closest(".diagram");

function apply(figure) {
  const svg = figure.querySelector("svg.graph");
  const factor = zooms.get(figure);
  const own = svg.viewBox.baseVal.width;
  svg.style.inlineSize = factor ? `${own * factor}px` : "";
  svg.style.minInlineSize = factor ? "0" : "";
  svg.style.maxInlineSize = factor ? "none" : "";
  figure.querySelector("[data-zoom-tools]").hidden = false;
  figure.querySelector("[data-zoom-now]").textContent = `${Math.round(100 * shown(svg))} %`;
}

const shown = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;

// What is at the pointer, or in the middle, stays where it is.
function zoom(figure, by, at) {
  const svg = figure.querySelector("svg.graph");
  const frame = frameOf(svg);
  const before = svg.getBoundingClientRect();
  const box = frame.getBoundingClientRect();
  const [x, y] = at ?? [box.x + box.width / 2, box.y + box.height / 2];
  const [across, down] = [(x - before.x) / before.width, (y - before.y) / before.height];
  if (by) zooms.set(figure, Math.min(MOST, Math.max(LEAST, shown(svg) * by)));
  else zooms.delete(figure);
  apply(figure);
  const after = svg.getBoundingClientRect();
  frame.scrollLeft += after.x + across * after.width - x;
  frame.scrollTop += after.y + down * after.height - y;
  document.dispatchEvent(new CustomEvent("contentchange"));
}

const KEYS = { "+": STEP, "=": STEP, "-": 1 / STEP, 0: null };

function prepare(figure) {
  for (const button of figure.querySelectorAll("button[data-zoom-by]")) {
    button.addEventListener("click", () => zoom(figure, KEYS[button.dataset.zoomBy]));
  }
  figure.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    zoom(figure, KEYS[event.key]);
  });
  figure.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(figure, event.deltaY < 0 ? STEP : 1 / STEP, [event.clientX, event.clientY]);
    },
    { passive: false },
  );
  const frame = frameOf(figure.querySelector("svg.graph"));
  let moved = 0;
  frame.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button || !event.target.closest("svg")) return;
    moved = 0;
    const move = (next) => {
      moved += Math.abs(next.movementX) + Math.abs(next.movementY);
      frame.scrollBy(-next.movementX, -next.movementY);
    };
    document.addEventListener("pointermove", move);
    const end = () => {
      document.removeEventListener("pointermove", move);
      // After the click that this ends with: later ones, by keys too, are of their own.
      setTimeout(() => { moved = 0; });
    };
    document.addEventListener("pointerup", end, { once: true });
  });
  frame.addEventListener("dragstart", (event) => event.preventDefault());
  // The end of a move selects no box.
  frame.addEventListener("click", (event) => moved > 4 && event.preventDefault(), true);
}

function prepareAll() {
  for (const figure of document.querySelectorAll("figure.diagram:has([data-zoom-tools])")) {
    if (!prepared.has(figure)) prepare(figure);
    prepared.add(figure);
    apply(figure);
  }
}

document.addEventListener("contentchange", prepareAll);
// A diagram in a closed fold has no size.
document.addEventListener("toggle", prepareAll, true);
prepareAll();
