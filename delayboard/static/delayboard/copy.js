// A button that copies the text of each block of code marked for it, and buttons that copy a whole id.

async function copy(text) {
  // A page without TLS has no clipboard: the text is selected, for Ctrl C.
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text.textContent);
    return "Copied";
  }
  getSelection().selectAllChildren(text);
  return "Selected: press Ctrl C";
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button[data-copy-id]");
  if (!button) return;
  const text = document.createElement("span");
  text.textContent = button.dataset.copyId;
  // Without a clipboard the whole id stands in the place of its beginning, selected.
  if (!navigator.clipboard) button.previousElementSibling.replaceChildren(text);
  await copy(text);
  button.dataset.done = "";
  button.setAttribute("aria-label", "Copied");
});

for (const block of document.querySelectorAll("pre[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = block.dataset.copy || "Copy";
  const done = document.createElement("span");
  done.setAttribute("role", "status");
  button.addEventListener("click", async () => {
    done.textContent = await copy(block.querySelector("code"));
  });
  const line = document.createElement("div");
  line.className = "actions";
  line.append(button, done);
  block.after(line);
}
