// What a person would see at once and axe does not look for; a list of sentences.
() => {
  const found = [];
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const named = (element) => {
    const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 40);
    return `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} “${text}”`;
  };
  const scrolls = (element) => {
    const box = element.parentElement?.closest(".scroll, .diagram, pre, .chart, svg, .js-plotly-plot");
    return Boolean(box);
  };

  // The part of a text's box that the boxes around it do not cut off.
  const visible = (rect, parent) => {
    let { left, right, top, bottom } = rect;
    for (let box = parent; box && box !== document.body; box = box.parentElement) {
      if (getComputedStyle(box).overflowX === "visible") continue;
      const outer = box.getBoundingClientRect();
      left = Math.max(left, outer.left);
      right = Math.min(right, outer.right);
      top = Math.max(top, outer.top);
      bottom = Math.min(bottom, outer.bottom);
    }
    return { left, right, top, bottom, width: right - left, height: bottom - top };
  };

  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    found.push(`the page is ${root.scrollWidth} wide in a window of ${root.clientWidth}`);
  }

  if (!document.title.trim() || !root.lang) found.push("the page has no title or no language");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const repeated = ids.filter((id, place) => ids.indexOf(id) !== place);
  if (repeated.length) found.push(`ids of several elements: ${repeated.slice(0, 3)}`);

  // On a tablet nobody pushes a table sideways, a folded one neither.
  const folded = [...document.querySelectorAll("details:not([open])")].filter((one) => one.querySelector(".scroll > table"));
  for (const one of folded) one.open = true;
  for (const box of document.querySelectorAll(".scroll:has(> table)")) {
    if (innerWidth !== 768 || !shown(box) || box.scrollWidth <= box.clientWidth + 1) continue;
    found.push(`${box.scrollWidth - box.clientWidth} px wider than its box: ${named(box)}`);
  }
  for (const one of folded) one.open = false;

  // On a phone a table that stacks is cards, which say their columns and which nobody pushes sideways.
  for (const table of document.querySelectorAll("table.stacks")) {
    if (innerWidth > 500 || !shown(table)) continue;
    const box = table.closest(".scroll");
    if (box && box.scrollWidth > box.clientWidth) found.push(`wider than its box: ${named(table)}`);
    for (const cell of table.querySelectorAll("td[data-label]:not(:empty)")) {
      if (getComputedStyle(cell, "::before").content === `"${cell.dataset.label}"`) continue;
      found.push(`without its label: ${named(cell)}`);
    }
  }

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, noscript, svg, option") || !shown(parent)) continue;
    const size = parseFloat(getComputedStyle(parent).fontSize);
    if (size < 12) found.push(`text of ${size} px: ${named(parent)}`);
    texts.push([node, parent]);
  }

  // Outside of what scrolls nothing may stand beside the window.
  for (const [, parent] of texts) {
    if (scrolls(parent) || parent.closest(".skip")) continue;
    const { left, right } = parent.getBoundingClientRect();
    if (left < -1 || right > innerWidth + 1) found.push(`beside the window: ${named(parent)}`);
  }

  // What is cut off must say the whole of it somewhere.
  for (const element of document.querySelectorAll("main *")) {
    if (!shown(element) || element.closest("svg, .chart, .message-item, option, select")) continue;
    const style = getComputedStyle(element);
    if (!/hidden|clip/.test(style.overflowX)) continue;
    if (element.scrollWidth <= element.clientWidth + 1) continue;
    if (element.closest("summary, [title], progress, input")) continue;
    found.push(`cut off: ${named(element)}`);
  }

  // No two texts on one another.
  const boxes = texts
    .filter(([, parent]) => !parent.closest(".menu-panel, .bulk, .tour, .skip, .chart, caption"))
    .flatMap(([node, parent]) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      return [...range.getClientRects()].map((rect) => ({ rect: visible(rect, parent), parent }));
    })
    .filter(({ rect }) => rect.width > 3 && rect.height > 3)
    .sort((one, other) => one.rect.top - other.rect.top);
  boxes.forEach(({ rect, parent }, place) => {
    for (const { rect: other, parent: second } of boxes.slice(place + 1)) {
      if (other.top > rect.bottom - 6) break;
      const across = Math.min(rect.right, other.right) - Math.max(rect.left, other.left);
      if (across <= 3 || parent === second || parent.contains(second) || second.contains(parent)) continue;
      found.push(`${named(parent)} lies on ${named(second)}`);
    }
  });
  return [...new Set(found)].slice(0, 8);
}
