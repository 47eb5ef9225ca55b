// Draws every <div class="chart" data-figure="ID"> from <script type="application/json" id="ID">
// holding {"data": [...], "layout": {...}}. A colour written as "var(--name)" is looked up in
// the style sheet, and again when the theme changes.

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

async function draw(element) {
  const source = document.getElementById(element.dataset.figure);
  // Once drawn it has buttons of its own, which an image cannot hold.
  if (element.getAttribute("role") === "img") element.setAttribute("role", "group");
  if (!source) return fail(element, "The figure of this chart is missing on the page.");
  try {
    const figure = coloured(JSON.parse(source.textContent));
    // With a new width Plotly takes the height of the element, not the one of the layout.
    if (figure.layout?.height) element.style.blockSize = `${figure.layout.height}px`;
    await window.Plotly.react(element, ...fitted(figure, element.clientWidth), CONFIG);
  } catch (error) {
    fail(element, `This chart could not be drawn (${error.message}). Its table is below.`);
  }
}

async function drawAll() {
  const charts = [...document.querySelectorAll(".chart[data-figure]")];
  if (window.Plotly) return Promise.all(charts.map(draw));
  for (const chart of charts) fail(chart, "The chart library did not load. The table has the numbers.");
}

drawAll();
document.addEventListener("themechange", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
