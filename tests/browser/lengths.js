// How many words of its own a page shows, and how high it is. What is read from the broker, the
// database or a file does not count: rows of tables and lists of messages, names, code and charts.
() => {
  const data = "tbody, .message-item, .name, .label, code, pre, kbd, svg, .chart, bdi, time, option, textarea, script, style, .skip";
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  let words = 0;
  while (walker.nextNode()) {
    const { data: text, parentElement: parent } = walker.currentNode;
    if (!text.trim() || parent.closest(data)) continue;
    if (!parent.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    words += (text.match(/[\p{L}\p{N}]+/gu) ?? []).length;
  }
  return [words, document.documentElement.scrollHeight];
}
