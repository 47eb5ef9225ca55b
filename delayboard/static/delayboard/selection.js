// Header checkbox, shift-click ranges, “all that match” and the count in the bulk bar of
// <form data-selection>.

function boxes(form) {
  return [...form.querySelectorAll("input[data-select]:not(:disabled)")];
}

function matching(form) {
  return form.querySelector("input[data-select-matching]");
}

function describeSelection(form, selected) {
  const match = matching(form);
  if (match?.checked) return `${match.parentElement.textContent.trim().replace("Select a", "A")} selected`;
  return selected ? `${selected} selected` : "Nothing selected";
}

function show(form) {
  const all = boxes(form);
  const selected = all.filter((box) => box.checked).length;
  // None of the rows on this page may be one that can be selected.
  const isAny = selected > 0 || Boolean(matching(form)?.checked);
  form.toggleAttribute("data-selected", isAny);
  const head = form.querySelector("input[data-select-all]");
  if (head) {
    head.hidden = false;
    head.closest("[data-select-all-line]")?.removeAttribute("hidden");
    head.checked = selected > 0 && selected === all.length;
    head.indeterminate = selected > 0 && selected < all.length;
  }
  for (const element of form.querySelectorAll("[data-selected-count]")) {
    const text = describeSelection(form, selected);
    if (element.textContent !== text) element.textContent = text;
  }
  for (const button of form.querySelectorAll("button[data-needs-selection]")) {
    button.disabled = !isAny;
    button.title = isAny ? "" : "Select at least one row.";
  }
}

// A row that is no longer selected ends “all that match”.
function follow(form, box) {
  const match = matching(form);
  if (!match) return;
  if (box === match) for (const one of boxes(form)) one.checked = match.checked;
  else if (boxes(form).some((one) => !one.checked)) match.checked = false;
}

function selectRange(form, from, to, checked) {
  const all = boxes(form);
  const [first, last] = [all.indexOf(from), all.indexOf(to)].sort((a, b) => a - b);
  if (first < 0) return;
  for (const box of all.slice(first, last + 1)) box.checked = checked;
}

function prepare(form) {
  let anchor = null;
  form.addEventListener("click", (event) => {
    if (!event.target.matches?.("input[data-select]")) return;
    if (event.shiftKey && anchor) selectRange(form, anchor, event.target, event.target.checked);
    anchor = event.target;
  });
  form.addEventListener("change", (event) => {
    const head = event.target.matches("input[data-select-all]") ? event.target : null;
    if (head) for (const box of boxes(form)) box.checked = head.checked;
    follow(form, event.target);
    show(form);
  });
  show(form);
}

// The browser restores ticked boxes after "back" without firing an event.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-selection]")) show(form);
});

const prepared = new WeakSet();

// A live list may get its form, or new rows, while the page is open.
function prepareAll() {
  for (const form of document.querySelectorAll("form[data-selection]")) {
    if (!prepared.has(form)) prepare(form);
    prepared.add(form);
    show(form);
  }
}

document.addEventListener("contentchange", prepareAll);
prepareAll();
