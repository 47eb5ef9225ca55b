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

  function choose(choice) {
    try {
      localStorage.setItem("delayboard-theme", choice);
    } catch {
      // Without storage the choice holds for this page only.
    }
    apply(choice);
    document.dispatchEvent(new CustomEvent("themechange"));
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
        choose(CHOICES[(CHOICES.indexOf(stored()) + 1) % CHOICES.length]);
      });
      document.addEventListener("themechange", show);
    }
    // The themes that the search finds. In the capture phase, before keys.js closes its panel.
    document.addEventListener(
      "click",
      (event) => {
        const choice = event.target.closest("#found a, [data-found] a")?.hash.replace("#theme-", "");
        if (!CHOICES.includes(choice)) return;
        event.preventDefault();
        choose(choice);
      },
      { capture: true },
    );
  });
})();
