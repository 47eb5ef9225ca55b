// Fills a page with the newest snapshot. A page opts in by <main data-live-url="/ws/...">. It says
// what it shows, and is sent that first, then what of it changes. When its version has changed,
// the page is fetched once and its [data-live-part] are taken over. A hidden page rests.

import { morph } from "./morph.js";
import { relative, tick } from "./times.js";

const main = document.querySelector("main[data-live-url]");
const NOT_SIGNED_IN = 4401;
const LONGEST_WAIT_MS = 30_000;
const BAR_TOP = 1_000_000;
const FETCH_PAUSE_MS = 5_000;
const LONGEST_FETCH_PAUSE_MS = 60_000;
// All open pages learn of a change at once, and must not fetch at once.
const SPREAD_MS = 1_000;

let lastSeq = -1;
let lastAt = null;
let attempts = 0;
let finished = false;
let socket = null;
let retry = null;

// The newest version that was sent, and the one for which the page was fetched last.
let version = main?.dataset.liveVersion ?? "";
let fetchedFor = version;
let fetchAt = 0;
let fetchPause = FETCH_PAUSE_MS;
let isFetching = false;
// Why what is shown is old: nobody is heard, the feed says so, the page cannot be fetched.
let lost = "";
let error = "";
let fetchError = "";

// The keys that the page sent last, as one text.
let watched = "";

// All that was sent so far: what was put again into the page meanwhile is filled too.
let cells = {};
let marks = {};

const PACES = [1, 20];

// What each state is called, for the words that stand beside a mark: by the id of a list of its
// own, or by that of all.
const stateNames = new Map();

function readStateNames(id) {
  if (!stateNames.has(id)) {
    stateNames.set(id, JSON.parse(document.getElementById(id)?.textContent ?? "{}"));
  }
  return stateNames.get(id);
}

function count(text) {
  const digits = text.replace(/[^\d]/g, "");
  return digits ? Number(digits) : null;
}

function share(messages, full) {
  if (!messages) return 0;
  const part = full ? messages / full : Math.log10(messages + 1) / Math.log10(BAR_TOP);
  return Math.min(Math.max(part, 0.02), 1);
}

// How fast a rate's mark beats: "" unknown, "0" not at all, "1" slowly to "3" quickly.
function pace(text) {
  const digits = text.replace(/[^\d.]/g, "");
  if (!digits) return "";
  return Number(digits) ? String(1 + PACES.filter((least) => Number(digits) >= least).length) : "0";
}

function setHidden(selector, isHidden) {
  for (const element of document.querySelectorAll(selector)) element.hidden = isHidden;
}

// `isOurs`: the trouble is between this page and Delayboard, and not the broker's.
function showProblem(sentence, isOurs = false) {
  main.toggleAttribute("data-stale", Boolean(sentence));
  for (const element of document.querySelectorAll("[data-live-error]")) {
    if (element.textContent !== sentence) element.textContent = sentence;
    element.hidden = !sentence;
  }
  setHidden("[data-live-trouble]", !sentence);
  setHidden("[data-live-good]", Boolean(sentence));
  setHidden("[data-live-reading]", true);
  setHidden("[data-live-who]", isOurs);
}

// The broker answers, and is being read for the first time: no trouble, and no numbers yet.
function wait(sentence) {
  for (const element of document.querySelectorAll("[data-live-so-far]")) {
    element.textContent = sentence;
  }
  setHidden("[data-live-good]", true);
  setHidden("[data-live-reading]", false);
}

// Says which values the page shows, when they are others than before.
function watch() {
  if (socket?.readyState !== WebSocket.OPEN) return;
  const keys = new Set();
  for (const element of document.querySelectorAll("[data-live], [data-bar], [data-draw], [data-rate], [data-mark]")) {
    const { live, bar, draw, rate, mark } = element.dataset;
    for (const key of [live, bar, draw, rate, mark]) if (key) keys.add(key);
  }
  const message = JSON.stringify({ type: "watch", keys: [...keys] });
  if (message === watched) return;
  watched = message;
  socket.send(message);
}

function show() {
  for (const element of document.querySelectorAll("[data-live]")) {
    const text = cells[element.dataset.live];
    if (text === undefined || element.textContent === text) continue;
    if (element instanceof HTMLProgressElement) element.value = count(text) ?? 0;
    else element.textContent = text;
  }
  for (const element of document.querySelectorAll("[data-bar]")) {
    const text = cells[element.dataset.bar];
    if (text === undefined) continue;
    const part = share(count(text), Number(element.dataset.full ?? 0));
    element.setAttribute("width", String(part * Number(element.dataset.width)));
  }
  for (const element of document.querySelectorAll("[data-draw]")) {
    const corners = cells[element.dataset.draw];
    const name = element.localName === "path" ? "d" : "points";
    if (corners !== undefined) element.setAttribute(name, corners);
  }
  for (const element of document.querySelectorAll("[data-rate]")) {
    const text = cells[element.dataset.rate];
    if (text !== undefined) element.dataset.pace = pace(text);
  }
  for (const element of document.querySelectorAll("[data-mark]")) {
    const mark = marks[element.dataset.mark];
    if (mark === undefined) continue;
    element.dataset.state = mark;
    const label = element.querySelector("[data-words]");
    const names = label && readStateNames(label.dataset.words || "mark-words");
    if (label && mark in names) label.textContent = names[mark];
  }
}

function age() {
  if (lastAt === null) return;
  const seconds = Math.max(0, (Date.now() - lastAt) / 1000);
  for (const element of document.querySelectorAll("[data-live-age]")) {
    element.textContent = seconds < 2 ? "just now" : relative(lastAt);
  }
}

function showProblems() {
  showProblem(lost || error || fetchError, Boolean(lost) || !error);
}

function takeOver(fetched) {
  const freshMain = fetched.querySelector("main");
  const [old, fresh] = [main, freshMain].map((one) => [...one.querySelectorAll("[data-live-part]")]);
  if (old.length !== fresh.length || freshMain.dataset.liveUrl !== main.dataset.liveUrl) {
    location.reload();
    return;
  }
  const focused = document.activeElement;
  old.forEach((part, index) => morph(part, fresh[index]));
  if (focused !== document.activeElement) focused.focus({ preventScroll: true });
  main.dataset.liveVersion = freshMain.dataset.liveVersion;
  document.title = fetched.title;
  document.querySelector("link[rel=icon]").href = fetched.querySelector("link[rel=icon]").href;
  tick(main);
  show();
  watch();
  document.dispatchEvent(new CustomEvent("contentchange"));
}

async function update() {
  const wanted = version;
  isFetching = true;
  try {
    const answer = await fetch(location.href, {
      headers: { "X-Refresh": wanted }, redirect: "error",
    });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    takeOver(new DOMParser().parseFromString(await answer.text(), "text/html"));
    [fetchedFor, fetchPause, fetchError] = [wanted, FETCH_PAUSE_MS, ""];
  } catch {
    fetchPause = Math.min(LONGEST_FETCH_PAUSE_MS, fetchPause * 2);
    fetchError = "Delayboard could not load the new state of this page. Delayboard tries again.";
  }
  fetchAt = Date.now() + fetchPause;
  isFetching = false;
  showProblems();
}

function updateWhenDue() {
  const isOld = version !== main.dataset.liveVersion && version !== fetchedFor;
  if (!isOld) fetchError = "";
  if (isOld && !isFetching && !document.hidden && Date.now() >= fetchAt) update();
}

function receive(state) {
  if (state.type !== "state" || state.seq < lastSeq) return;
  lastSeq = state.seq;
  lastAt = Date.parse(state.at) || lastAt;
  Object.assign(cells, state.cells);
  Object.assign(marks, state.marks);
  show();
  [lost, error] = ["", state.error];
  showProblems();
  if (state.version !== version && main.querySelector("[data-live-part]")) {
    version = state.version;
    fetchAt = Math.max(fetchAt, Date.now() + Math.random() * SPREAD_MS);
  }
  if (state.reading) wait(state.reading);
  age();
  // The page was made without any numbers: there is nothing in it to fill.
  if ("liveBlank" in main.dataset && !state.error && state.at) location.reload();
  if (!state.done) return;
  finished = true;
  if ("liveReload" in main.dataset) location.reload();
}

function connect() {
  clearTimeout(retry);
  const url = new URL(main.dataset.liveUrl, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const own = new WebSocket(url);
  socket = own;
  own.addEventListener("open", () => {
    attempts = 0;
    lastSeq = -1;
    watched = "";
    [cells, marks] = [{}, {}];
    watch();
  });
  own.addEventListener("message", (event) => {
    if (socket !== own) return;
    receive(JSON.parse(event.data));
    if (finished) own.close();
  });
  own.addEventListener("close", (event) => {
    if (finished || socket !== own) return;
    if (event.code === NOT_SIGNED_IN) {
      lost = "You are signed out, and these numbers are old. Sign in again.";
      showProblems();
      return;
    }
    lost = "The connection to Delayboard is lost. These numbers are old. Delayboard tries again.";
    showProblems();
    const pause = Math.min(LONGEST_WAIT_MS, 500 * 2 ** attempts);
    attempts += 1;
    retry = setTimeout(connect, pause * (0.5 + Math.random() / 2));
  });
}

function rest() {
  const own = socket;
  socket = null;
  clearTimeout(retry);
  own?.close();
}

if (main) {
  lastAt = Date.parse(main.dataset.liveAt ?? "") || null;
  if (!document.hidden) connect();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) rest();
    else if (!finished && !socket) connect();
  });
  setInterval(() => {
    age();
    watch();
    updateWhenDue();
  }, 1000);
}
