// A page of a broker that is being read for the first time: looks again until there is something
// to show. Live pages (live.js) do so themselves.

const WAIT_MS = 3_000;
const main = document.querySelector("main");

function isTouched() {
  const fields = [...document.querySelectorAll("input[type=text], input[type=search], textarea")];
  return fields.some((field) => field.value !== field.defaultValue);
}

async function fetchPage() {
  try {
    const answer = await fetch(location.href, {
      headers: { "X-Refresh": "1" }, redirect: "error",
    });
    const fetched = new DOMParser().parseFromString(await answer.text(), "text/html");
    const [old, fresh] = [document, fetched].map((page) =>
      page.querySelector("[data-live-reading]"),
    );
    if (fresh && !fresh.hidden) {
      old.replaceWith(fresh);
    } else if (isTouched()) {
      // What somebody has typed is not thrown away.
      old.lastElementChild.textContent = "Loading is complete. Reload this page.";
      return;
    } else if (answer.ok) {
      location.reload();
      return;
    }
  } catch {
    // Asked again, until Delayboard answers.
  }
  setTimeout(fetchPage, WAIT_MS);
}

if (!("liveUrl" in main.dataset)) setTimeout(fetchPage, WAIT_MS);
