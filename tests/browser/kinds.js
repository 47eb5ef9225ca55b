// `seen` is JSON: Playwright takes long for a list of thousands.
// Notes in window.unseen the topmost elements of the kinds that are not in `seen`, and returns these
// kinds. Elements of one kind have the same tag, attributes, colours and font in the same parent: what
// axe says of one, it says of all. Rows without an unseen element leave the page, but for the first of
// their table or list: axe looks at everything on a page, also when it is asked for a part of it.
(seen) => {
  const known = new Set(JSON.parse(seen));
  const tags = new Map();
  const grounds = new Map();
  const unseen = new Map();
  const hash = (text) => {
    let sum = 7;
    for (let at = 0; at < text.length; at++) sum = (sum * 31 + text.charCodeAt(at)) | 0;
    return sum;
  };
  for (const element of document.querySelectorAll("html, html *")) {
    const parent = element.parentElement;
    const stated = [...element.attributes].map(({ name, value }) => {
      if (/^aria-(labelledby|controls|describedby)$/.test(name)) return `${name}=${Boolean(document.getElementById(value))}`;
      return /^(class|role|type|lang|aria-(?!label|value))/.test(name) ? `${name}=${value}` : `${name}=${Boolean(value.trim())}`;
    });
    const { color, backgroundColor, fontSize, fontWeight } = getComputedStyle(element);
    tags.set(element, [element.localName, ...stated.sort()].join(" "));
    grounds.set(element, backgroundColor === "rgba(0, 0, 0, 0)" ? grounds.get(parent) : backgroundColor);
    if (document.body.contains(element) && !element.checkVisibility()) continue;
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const look = hasText && [color, grounds.get(element), fontSize, fontWeight];
    const named = [Boolean(element.textContent.trim()), element.labels?.length];
    const kind = hash([tags.get(parent), tags.get(element), named, look].join());
    if (known.has(kind)) continue;
    known.add(kind);
    unseen.set(element, kind);
  }
  const kept = new Set();
  for (let element of unseen.keys()) for (; element && !kept.has(element); element = element.parentElement) kept.add(element);
  for (const row of unseen.size ? document.querySelectorAll("tbody > tr, ol > li, ul > li") : []) {
    if (row.previousElementSibling && !kept.has(row)) row.remove();
  }
  // A chart is drawn anew in another theme: what is in it is judged with all of it.
  const topmost = [...unseen.keys()].filter((one) => !unseen.has(one.parentElement));
  window.unseen = [...new Set(topmost.map((one) => one.closest(".chart") ?? one))];
  return [...unseen.values()];
}
