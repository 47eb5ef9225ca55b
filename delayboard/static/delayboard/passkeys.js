// Passkeys: what needs them is shown where the browser has them, and a refusal is shown.
// django-allauth's own scripts do the rest.
if (window.PublicKeyCredential) {
  for (const part of document.querySelectorAll("[data-passkey-only]")) part.hidden = false;
}
document.addEventListener("allauth.error", (event) => {
  event.preventDefault();
  for (const part of document.querySelectorAll("[data-passkey-trouble]")) part.hidden = false;
});
