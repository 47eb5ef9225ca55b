// Charts come drawn from the server. Pointing at a day shows it in all of them; Zoom draws one by Plotly, which is
// loaded then, from <script type="application/json"> with the id of data-figure: {"data": [...], "layout": {...}}.
// A colour written as "var(--name)" is looked up in the style sheet, and again when the theme changes.

const CONFIG = {
  // Where nothing hovers, the buttons would stay over the legend.
  displayModeBar: matchMedia("(hover: none)").matches ? false : "hover",
  showSendToCloud: false,
  plotlyServerURL: "",
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

const LABEL_PIXELS = 60;

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

// A token holds both themes' colours; only a real property tells the one in force.
function token(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function coloured(value) {
  if (typeof value === "string") {
    const name = /^var\((--[\w-]+)\)$/.exec(value);
    return name ? token(name[1]) : value;
  }
  if (Array.isArray(value)) return value.map(coloured);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
}

function axis(own = {}) {
  const line = token("--line");
  return { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, ...own };
}

function themed(layout) {
  const axes = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
  const result = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 16, t: 16, b: 40 },
    ...layout,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, ...layout.font, color: token("--text") },
    hoverlabel: {
      bgcolor: token("--surface"),
      bordercolor: token("--line-strong"),
      font: { color: token("--text") },
      ...layout.hoverlabel,
    },
  };
  for (const key of new Set(["xaxis", "yaxis", ...axes])) result[key] = axis(layout[key]);
  delete result.template;
  return result;
}

// The middle of a name that would take more than a third of the diagram is left out.
function shortened(name, longest) {
  if (typeof name !== "string" || name.length <= longest) return name;
  const tail = Math.floor(longest / 3);
  return `${name.slice(0, longest - tail - 1)}…${name.slice(-tail)}`;
}

function fitted(figure, width) {
  const longest = Math.max(14, Math.floor(width / 20));
  const data = (figure.data ?? []).map((trace) => ({ ...trace, name: shortened(trace.name, longest) }));
  const labels = data.flatMap((trace) => [...(trace.x ?? []), ...(trace.y ?? [])]);
  const long = labels.filter((label) => typeof label === "string" && label.length > longest);
  const labelalias = Object.fromEntries(long.map((label) => [label, shortened(label, longest)]));
  const layout = themed(figure.layout ?? {});
  // Beside each other, as many labels as there is room for.
  const most = Math.max(2, Math.floor(width / LABEL_PIXELS));
  for (const key of Object.keys(layout)) {
    if (!/^[xy]axis\d*$/.test(key)) continue;
    layout[key] = { ...layout[key], labelalias };
    if (key.startsWith("x") && layout[key].nticks > most) layout[key].nticks = most;
  }
  return [data, layout];
}

function fail(element, sentence) {
  element.classList.add("chart-problem");
  element.textContent = sentence;
}

const server = new Map();
let loading;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = document.querySelector("script[data-plotly]").dataset.plotly;
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("the chart library did not load")));
    document.head.append(script);
  });
  return loading;
}

async function draw(element) {
  const figure = coloured(JSON.parse(document.getElementById(element.dataset.figure).textContent));
  // With a new width Plotly takes the height of the element, not the one of the layout.
  if (figure.layout?.height) element.style.blockSize = `${figure.layout.height}px`;
  await window.Plotly.react(element, ...fitted(figure, element.clientWidth), CONFIG);
}

function open(element, { points }) {
  const [point] = points;
  const link = point.data.meta?.links?.[point.pointNumber];
  if (link) location.assign(link);
}

// The days of one zoomed chart are those of all others.
function follow(element, change) {
  const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  const update = change["xaxis.autorange"] ? { "xaxis.autorange": true } : { "xaxis.range": range };
  if (element.layout.xaxis.type !== "date" || !(range[0] || change["xaxis.autorange"])) return;
  for (const other of server.keys()) {
    const is = other.layout.xaxis.range?.join();
    const differs = change["xaxis.autorange"] ? !other.layout.xaxis.autorange : is !== range.join();
    if (other !== element && other.layout.xaxis.type === "date" && differs) window.Plotly.relayout(other, update);
  }
}

async function zoom(button) {
  const element = document.querySelector(`[data-figure="${button.dataset.zoom}"]`);
  if (server.has(element)) {
    window.Plotly.purge(element);
    element.replaceChildren(...server.get(element));
    element.style.blockSize = "";
    server.delete(element);
    button.textContent = "Zoom";
    return;
  }
  button.disabled = true;
  const before = [...element.childNodes];
  try {
    await load();
    element.replaceChildren();
    await draw(element);
    element.on("plotly_click", (event) => open(element, event));
    element.on("plotly_relayout", (change) => follow(element, change));
    server.set(element, before);
    button.textContent = "Close zoom";
  } catch (error) {
    element.replaceChildren(...before);
    const problem = document.createElement("p");
    fail(problem, `This chart cannot be zoomed (${error.message}).`);
    element.append(problem);
  }
  button.disabled = false;
}

function drawAll() {
  for (const element of server.keys()) draw(element);
}

for (const button of document.querySelectorAll("[data-zoom]")) {
  button.hidden = false;
  button.addEventListener("click", () => zoom(button));
}
document.addEventListener("themechange", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

const shown = new Map();

function unpoint() {
  for (const parts of shown.values()) for (const part of parts) part.remove();
  shown.clear();
  for (const cell of document.querySelectorAll("td[data-at]")) delete cell.dataset.at;
}

// What stands above or below the pointer: the place across, such as a day.
function placeAt(chart, x) {
  let [best, nearest] = ["", Infinity];
  for (const mark of chart.querySelectorAll("[data-x]")) {
    const { left, right } = mark.getBoundingClientRect();
    const away = Math.abs((left + right) / 2 - x);
    if (away < nearest) [best, nearest] = [mark.dataset.x, away];
  }
  return best;
}

function point(place) {
  unpoint();
  for (const chart of document.querySelectorAll("[data-across]")) {
    const marks = [...chart.querySelectorAll(`[data-x="${CSS.escape(place)}"]`)];
    if (!marks.length) continue;
    if (chart.matches("table")) {
      for (const cell of marks) cell.dataset.at = "";
      continue;
    }
    const box = chart.getBoundingClientRect();
    const mark = marks[0].getBoundingClientRect();
    const middle = (mark.left + mark.right) / 2 - box.left;
    const line = Object.assign(document.createElement("div"), { className: "crosshair" });
    line.style.insetInlineStart = `${middle}px`;
    const text = Object.assign(document.createElement("div"), { className: "crosshair-text" });
    const titles = marks.map((one) => one.querySelector("title")?.textContent.replace(`${place}: `, "") ?? "");
    text.textContent = [place, ...titles].join("\n");
    chart.append(line, text);
    const side = middle > box.width / 2 ? "insetInlineEnd" : "insetInlineStart";
    text.style[side] = `${(side === "insetInlineEnd" ? box.width - middle : middle) + 8}px`;
    shown.set(chart, [line, text]);
  }
}

for (const chart of document.querySelectorAll("[data-across]")) {
  let last = "";
  chart.addEventListener("pointermove", (event) => {
    if (server.has(chart)) return;
    const place = chart.matches("table") ? (event.target.closest("[data-x]")?.dataset.x ?? "") : placeAt(chart, event.clientX);
    if (place && place !== last) point(place);
    last = place;
  });
  chart.addEventListener("pointerleave", () => {
    last = "";
    unpoint();
  });
}

// One stop for the Tab key in each heat map; arrows lead to the other cells.
const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
for (const table of document.querySelectorAll("table.heat")) {
  const links = [...table.querySelectorAll("a")];
  for (const link of links.slice(1)) link.tabIndex = -1;
  table.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    let cell = event.target.closest("td");
    if (!step || !cell) return;
    event.preventDefault();
    let link = null;
    for (let { rowIndex, cellIndex } = { rowIndex: cell.parentNode.rowIndex, cellIndex: cell.cellIndex }; cell && !link;) {
      [rowIndex, cellIndex] = [rowIndex + step[0], cellIndex + step[1]];
      cell = table.rows[rowIndex]?.cells[cellIndex];
      link = cell?.querySelector("a");
    }
    link?.focus();
  });
}
