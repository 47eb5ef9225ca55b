// The tour works without it. Here: Escape leaves, and a new step gets the focus.
const tour = document.querySelector("[data-tour]");
tour.focus({ preventScroll: true });
tour.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tour.querySelector("[data-tour-leave], button").click();
});
