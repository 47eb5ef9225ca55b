// Loaded in the head before anything is painted, so that a chosen theme never flashes.
(() => {
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;
  // What works by a script only is out of sight without one.
  root.dataset.script = "";

  function stored() {
    try {
      return localStorage.getItem("delayboard-theme") ?? "system";
    } catch {
      return "system";
    }
  }

  function apply(choice) {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
  }

  apply(stored());

  document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      const show = () => {
        button.textContent = `Theme: ${stored()}`;
      };
      show();
      button.hidden = false;
      button.addEventListener("click", () => {
        const next = CHOICES[(CHOICES.indexOf(stored()) + 1) % CHOICES.length];
        try {
          localStorage.setItem("delayboard-theme", next);
        } catch {
          // Without storage the choice holds for this page only.
        }
        apply(next);
        show();
        document.dispatchEvent(new CustomEvent("themechange"));
      });
    }
  });
})();
