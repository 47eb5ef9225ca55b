// <form data-confirm-name="orders">: its submit button waits until the name has been typed.
// The server checks the name as well; this only says so earlier.

for (const form of document.querySelectorAll("form[data-confirm-name]")) {
  const input = form.querySelector("input[data-confirm]");
  const buttons = form.querySelectorAll("button[data-confirm-button]");
  const show = () => {
    const matches = input.value === form.dataset.confirmName;
    for (const button of buttons) {
      button.disabled = !matches;
      button.title = matches ? "" : "Type the name exactly as it is shown.";
    }
  };
  if (!input) continue;
  input.addEventListener("input", show);
  window.addEventListener("pageshow", show);
  show();
}
