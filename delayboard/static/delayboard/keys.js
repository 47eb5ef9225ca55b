// Keys: Ctrl-K searches everything, / this page, g and a letter leads to a page, ? lists them. In a list
// j and k move to a row, Enter opens it, x selects it, Escape ends the selection, and the letter on a
// button of the action bar presses it.
// Escape, or a click elsewhere, closes the menus of the header.
// What is found comes from the page Search, which works without this script.

const input = document.querySelector("[data-find]");
const panel = document.querySelector("[data-found]");
const PAUSE_MS = 150;
const GO_MS = 1_500;

let pause = null;
let asked = 0;
// Whether the panel shows what was found for the text as it is.
let isCurrent = false;
let goUntil = 0;

function close() {
  asked += 1;
  clearTimeout(pause);
  isCurrent = false;
  panel.hidden = true;
}

async function find() {
  const own = (asked += 1);
  const form = input.form;
  try {
    const answer = await fetch(`${form.action}?${new URLSearchParams(new FormData(form))}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.querySelector("#found");
    if (own !== asked || !answer.ok || !found) return;
    panel.replaceChildren(...found.children);
    panel.hidden = false;
    isCurrent = true;
  } catch {
    // The form still leads to the page Search, which says what is wrong.
  }
}

function move(event) {
  const links = [...panel.querySelectorAll("a")];
  const place = links.indexOf(document.activeElement);
  if (event.key === "Escape") {
    // In this order: the focus begins a search, which is given up.
    input.focus();
    close();
  } else if (event.key === "ArrowDown") {
    links[place + 1]?.focus();
  } else if (event.key === "ArrowUp") {
    (links[place - 1] ?? input).focus();
  } else if (event.key === "Enter" && document.activeElement === input && links.length && isCurrent) {
    links[0].click();
  } else {
    return;
  }
  event.preventDefault();
}

function list() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "keys-title");
  const title = Object.assign(document.createElement("h2"), { id: "keys-title", textContent: "Keys" });
  const keys = document.createElement("dl");
  keys.className = "facts";
  const pages = [...document.querySelectorAll("body > .pages a[data-go]")].map((link) => [
    `g ${link.dataset.go}`,
    link.firstChild.textContent.trim(),
  ]);
  for (const [key, words] of [
    ["Ctrl K", "Search pages, actions, objects and message ids"],
    ["/", "Search this page"],
    ["j k", "Next or previous row"],
    ["Enter", "Open row"],
    ["x", "Select row"],
    ["Esc", "Clear selection"],
    ["?", "List of keys"],
    ...pages,
  ]) {
    const term = document.createElement("dt");
    term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    keys.append(term, Object.assign(document.createElement("dd"), { textContent: words }));
  }
  const form = document.createElement("form");
  form.method = "dialog";
  form.append(Object.assign(document.createElement("button"), { textContent: "Close" }));
  dialog.append(title, keys, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function focus(element) {
  element?.focus();
  element?.select();
}

function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (event.type === "click" && menu.contains(event.target)) continue;
    if (event.type === "keydown") menu.querySelector("summary").focus();
    menu.open = false;
  }
}

const rows = () =>
  [...document.querySelectorAll("main table.data tbody tr, main .message-item")].filter((row) => row.checkVisibility());
const current = () => document.querySelector("main [data-cursor]");

function moveCursor(step) {
  const all = rows();
  const place = all.indexOf(current());
  const next = all[place < 0 ? 0 : Math.min(all.length - 1, Math.max(0, place + step))];
  if (!next) return;
  current()?.removeAttribute("data-cursor");
  next.setAttribute("data-cursor", "");
  next.scrollIntoView({ block: "nearest" });
  // What a screen reader reads, and where Tab goes on.
  (next.querySelector("a, summary") ?? next.querySelector("input"))?.focus({ preventScroll: true });
}

function clearSelection() {
  for (const box of document.querySelectorAll("main input:is([data-select], [data-select-matching]):checked")) {
    box.checked = false;
    box.dispatchEvent(new Event("change", { bubbles: true }));
  }
  current()?.removeAttribute("data-cursor");
}

// Whether the key does something with a row or the action bar.
function pressRow(key) {
  const row = current();
  if (key === "j") moveCursor(1);
  else if (key === "k") moveCursor(-1);
  else if (key === "x" && row) row.querySelector("input[data-select]")?.click();
  else if (key === "Escape") clearSelection();
  else document.querySelector(`form[data-selected] .bulk button[data-press="${CSS.escape(key)}"]`)?.click();
}

function press(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    focus(input);
    return;
  }
  const isTyping = event.target.closest?.(
    "input:not([type=checkbox]), textarea, select, dialog, [contenteditable]",
  );
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (Date.now() < goUntil) {
    goUntil = 0;
    document.querySelector(`body > .pages a[data-go="${CSS.escape(event.key)}"]`)?.click();
  } else if (event.key === "g") {
    goUntil = Date.now() + GO_MS;
  } else if (event.key === "/") {
    event.preventDefault();
    const field = document.querySelector("main [role=search] input[type=search]");
    focus(field?.checkVisibility() ? field : input);
  } else if (event.key === "?") {
    list();
  } else {
    pressRow(event.key);
  }
}

document.addEventListener("click", closeMenus);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenus(event);
});

if (input) {
  input.form.querySelector("kbd").hidden = false;
  input.addEventListener("focus", find);
  input.addEventListener("input", () => {
    isCurrent = false;
    asked += 1;
    clearTimeout(pause);
    pause = setTimeout(find, PAUSE_MS);
  });
  input.form.addEventListener("keydown", move);
  panel.addEventListener("click", (event) => {
    // A command that was done here, and leads nowhere.
    if (event.defaultPrevented) close();
  });
  input.form.addEventListener("focusout", (event) => {
    if (!input.form.contains(event.relatedTarget)) close();
  });
  document.addEventListener("keydown", press);
}
