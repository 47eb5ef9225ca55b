// Makes one element like another and keeps what has not changed: folds, focus, places of scrolling,
// what was typed. Elements with a data-key are found again by it, others by their place.

// Written by other scripts, or by whoever reads the page.
const KEPT = new Set(["open", "tabindex", "role", "aria-label", "title"]);

function isAlike(old, fresh) {
  return old.nodeName === fresh.nodeName && old.dataset?.key === fresh.dataset?.key;
}

function takeAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
    return;
  }
  takeAttributes(old, fresh);
  const keyed = new Map([...old.children].map((child) => [child.dataset.key, child]));
  keyed.delete(undefined);
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const found = keyed.get(child.dataset?.key) ?? place;
    if (!found || !isAlike(found, child)) {
      old.insertBefore(child, place);
      continue;
    }
    if (found === place) place = place.nextSibling;
    else old.insertBefore(found, place);
    morph(found, child);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
