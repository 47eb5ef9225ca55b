// What scrolls sideways can be reached and named from the keyboard; a name that is cut off says
// the whole of it when one points at it.

function nameOf(box) {
  const named = box.querySelector("caption, figcaption, svg > title");
  const heading = box.closest("section, .panel")?.querySelector("h1, h2, h3");
  return (named ?? heading)?.textContent.trim() || "More to the side";
}

function show() {
  for (const name of document.querySelectorAll("table.data :is(.name, .label)")) {
    if (name.scrollHeight > name.clientHeight + 1) name.title ||= name.textContent.trim();
  }
  for (const box of document.querySelectorAll(".scroll, .diagram, pre")) {
    const scrolls =
      box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
    if (!scrolls || box.tabIndex === 0) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", nameOf(box));
  }
}

document.addEventListener("contentchange", show);
new ResizeObserver(show).observe(document.body);
show();
