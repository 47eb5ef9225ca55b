// Fields that apply only to some values of another field: for others they are hidden and not sent.

function show(form) {
  for (const field of form.querySelectorAll("[data-only-for]")) {
    const chosen = form.elements[field.dataset.onlyFor];
    const applies = field.dataset.onlyValues.split(" ").includes(chosen.value);
    field.disabled = !applies;
    field.closest(".field").hidden = !applies;
  }
}

for (const form of document.querySelectorAll("form:has([data-only-for])")) {
  form.addEventListener("change", () => show(form));
  // The browser restores choices after "back" without firing an event.
  window.addEventListener("pageshow", () => show(form));
  show(form);
}
