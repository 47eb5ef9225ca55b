// Keeps a page new while it is open. A page opts in by <main data-live-url="/ws/...">. Its WebSocket
// says which version there is; when the page has another, it is fetched, and what differs in its
// [data-live-part] is taken over. A hidden page rests.

import { morph } from "./morph.js";
import { relative, tick } from "./times.js";

const main = document.querySelector("main[data-live-url]");
const NOT_SIGNED_IN = 4401;
const LONGEST_WAIT_MS = 30_000;
const FETCH_PAUSE_MS = 1_000;
const LONGEST_FETCH_PAUSE_MS = 60_000;
// A page that takes long to make is fetched seldomer: a tenth of the time at most.
const REST_FACTOR = 9;

let lastAt = null;
let attempts = 0;
let socket = null;
let retry = null;

// The newest version that was sent, and the one for which the page was fetched last.
let version = main?.dataset.liveVersion ?? "";
let fetchedFor = version;
let fetchAt = 0;
let failures = 0;
let isFetching = false;
// Within so many milliseconds all open pages may fetch, so that they do not all at once.
let withinMs = 0;
// Why what is shown is old: nobody is heard, or the page cannot be fetched.
let lost = "";
let fetchError = "";

function showProblem() {
  const sentence = lost || fetchError;
  const isOld = Boolean(sentence) || main.querySelector("[data-live-old]") !== null;
  main.toggleAttribute("data-stale", isOld);
  for (const element of document.querySelectorAll("[data-live-error]")) {
    if (element.textContent !== sentence) element.textContent = sentence;
    element.closest("[data-live-trouble]").hidden = !sentence;
  }
}

function showAge() {
  if (lastAt === null) return;
  const seconds = Math.max(0, (Date.now() - lastAt) / 1000);
  for (const element of document.querySelectorAll("[data-live-age]")) {
    element.textContent = seconds < 2 ? "just now" : relative(lastAt);
  }
}

// The rows of a list stay where they are; those that changed are marked.
function markRows(words) {
  for (const [key, word] of Object.entries(words)) {
    const row = document.querySelector(`tr[data-key="${CSS.escape(key)}"]`);
    if (!row) continue;
    const isChanged = word !== row.dataset.word;
    if (isChanged) row.dataset.state = "changed";
    else delete row.dataset.state;
    row.querySelector(".changed").textContent = isChanged ? word : "";
  }
}

function takeOver(fetched) {
  const freshMain = fetched.querySelector("main");
  const [old, fresh] = [main, freshMain].map((one) => [...one.querySelectorAll("[data-live-part]")]);
  const isList = main.querySelector("[data-live-list]") !== null;
  const hasOtherRows = freshMain.dataset.liveUrl !== main.dataset.liveUrl;
  if (old.length !== fresh.length || (hasOtherRows && !isList)) {
    location.reload();
    return;
  }
  const focused = document.activeElement;
  old.forEach((part, index) => morph(part, fresh[index]));
  if (focused !== document.activeElement) focused.focus({ preventScroll: true });
  main.dataset.liveVersion = freshMain.dataset.liveVersion;
  lastAt = Date.parse(freshMain.dataset.liveAt) || lastAt;
  document.title = fetched.title;
  document.querySelector("link[rel=icon]").href = fetched.querySelector("link[rel=icon]").href;
  tick(main);
  showAge();
  document.dispatchEvent(new CustomEvent("contentchange"));
  if (!hasOtherRows) return;
  main.dataset.liveUrl = freshMain.dataset.liveUrl;
  // The next socket counts from the fetched page on.
  version = fetchedFor = main.dataset.liveVersion;
  rest();
  connect();
}

// New rows wait while somebody selects rows, or points at one of them; in a list that asks, always.
const HELD = "main[data-live-asks], [data-live-list] :is(tbody:hover, input:checked, :focus-visible)";

const isHeld = () => isPaused || document.querySelector(HELD) !== null;

async function update() {
  const [wanted, began] = [version, Date.now()];
  isFetching = true;
  try {
    const answer = await fetch(location.href, {
      headers: { "X-Refresh": wanted }, redirect: "error",
    });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const text = await answer.text();
    [failures, fetchError] = [0, ""];
    // Somebody may have taken hold of a row meanwhile.
    if (!isHeld()) {
      fetchedFor = wanted;
      takeOver(new DOMParser().parseFromString(text, "text/html"));
    }
  } catch {
    failures += 1;
    fetchError = "Delayboard could not load the new state of this page. Delayboard tries again.";
  }
  const pause = Math.max(FETCH_PAUSE_MS, withinMs, REST_FACTOR * (Date.now() - began));
  fetchAt = Date.now() + Math.min(LONGEST_FETCH_PAUSE_MS, pause * 2 ** failures);
  isFetching = false;
  showProblem();
  updateWhenDue();
}

function updateWhenDue() {
  const isOld = version !== main.dataset.liveVersion && version !== fetchedFor;
  const held = isHeld();
  for (const note of document.querySelectorAll("[data-live-held]")) {
    const number = note.querySelector("[data-live-new]");
    if (number.textContent !== version) number.textContent = version;
    note.hidden = !isOld || !held;
  }
  if (!isOld || held || isFetching || document.hidden) return;
  if (Date.now() >= fetchAt) update();
}

// A list that somebody reads stands still; what arrives meanwhile is taken over afterwards.
let isPaused = false;
let heard = null;

function receive(news) {
  heard = news;
  if (isPaused) {
    version = news.version;
    updateWhenDue();
    return;
  }
  lastAt = Date.parse(news.at) || lastAt;
  lost = "";
  markRows(news.rows);
  withinMs = 1000 * news.within;
  if (news.version !== version) {
    version = news.version;
    fetchAt = Math.max(fetchAt, Date.now() + Math.random() * withinMs);
  }
  showAge();
  showProblem();
  updateWhenDue();
}

function connect() {
  clearTimeout(retry);
  const url = new URL(main.dataset.liveUrl, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const own = new WebSocket(url);
  socket = own;
  own.addEventListener("open", () => {
    attempts = 0;
  });
  own.addEventListener("message", (event) => {
    if (socket === own) receive(JSON.parse(event.data));
  });
  own.addEventListener("close", (event) => {
    if (socket !== own) return;
    if (event.code === NOT_SIGNED_IN) {
      lost = "You are signed out, and these numbers are old. Sign in again.";
      showProblem();
      return;
    }
    lost = "The connection to Delayboard is lost. These numbers are old. Delayboard tries again.";
    showProblem();
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

for (const button of document.querySelectorAll("button[data-live-pause]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Resume updates" : "Pause updates";
    if (!isPaused && heard) receive(heard);
  });
}

if (main) {
  lastAt = Date.parse(main.dataset.liveAt ?? "") || null;
  if (!document.hidden) connect();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) rest();
    else if (!socket) connect();
  });
  setInterval(() => {
    showAge();
    updateWhenDue();
  }, 1000);
}
