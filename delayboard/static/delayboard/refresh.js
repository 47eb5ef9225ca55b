// <main data-refresh="5">: fetches the page again every so many seconds, while it is looked at,
// and puts its [data-refresh-part] and its title in place of the old ones.

const main = document.querySelector("main[data-refresh]");
const LONGEST_WAIT_MS = 60_000;
const base = Number(main?.dataset.refresh ?? 0) * 1000;
let wait = base;

function say(sentence) {
  main.toggleAttribute("data-stale", Boolean(sentence));
  for (const box of main.querySelectorAll("[data-refresh-error]")) {
    box.hidden = !sentence;
    box.firstElementChild.textContent = sentence;
  }
}

function replace(old, fresh) {
  const unfolded = [...old.querySelectorAll("details")].map((details) => details.open);
  const places = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  const focused = [...old.querySelectorAll("a")].indexOf(document.activeElement);
  old.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((details, index) => {
    details.open = unfolded[index] ?? details.open;
  });
  fresh.querySelectorAll(".scroll").forEach((box, index) => {
    box.scrollLeft = places[index] ?? 0;
  });
  fresh.querySelectorAll("a")[focused]?.focus({ preventScroll: true });
}

function put(fetched) {
  // Text that somebody is marking must not vanish under the pointer.
  if (!document.getSelection().isCollapsed) return;
  for (const name of ["[data-refresh-said]", "[data-refresh-part]"]) {
    const [old, fresh] = [main.querySelector(name), fetched.querySelector(name)];
    if (old && fresh) replace(old, fresh);
  }
  document.title = fetched.title;
}

async function refresh() {
  try {
    const answer = await fetch(location.href, {
      headers: { "X-Refresh": "1" }, redirect: "error",
    });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    put(new DOMParser().parseFromString(await answer.text(), "text/html"));
    wait = base;
    say("");
  } catch {
    wait = Math.min(LONGEST_WAIT_MS, wait * 2);
    say("Delayboard does not answer, or you are signed out. The data on this page is old. Delayboard tries again.");
  }
}

async function keep() {
  if (!document.hidden) await refresh();
  setTimeout(keep, wait);
}

if (main) {
  setTimeout(keep, wait);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
}
