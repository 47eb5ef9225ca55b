// The publish form: the predicted route follows what is typed, and a file becomes the body.
// The server predicts; without this script its button does.

const form = document.querySelector("#publish-form");
const PAUSE_MS = 300;
const REPLACED = ["prediction", "offers", "delay-offer", "target-offer"];
const CONTENT_TYPES = {
  text: "text/plain", json: "application/json", base64: "application/octet-stream",
};
const LARGEST_FILE = 8 * 1024 * 1024;

let pause = null;
let asked = 0;

async function predict() {
  const own = (asked += 1);
  const values = new FormData(form);
  values.set("predict", "1");
  try {
    const answer = await fetch(form.action, {
      method: "POST", body: new URLSearchParams(values), redirect: "error",
    });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (own !== asked || !answer.ok) return;
    for (const name of REPLACED) {
      const fresh = page.getElementById(name);
      if (fresh) document.getElementById(name).replaceChildren(...fresh.childNodes);
    }
  } catch {
    // The button says what is wrong.
  }
}

function schedulePrediction() {
  clearTimeout(pause);
  // What is typed is no longer what was predicted.
  const button = document.querySelector("[data-publish]");
  if (button) {
    button.name = "predict";
    button.textContent = "Predict route";
    button.className = "primary";
    delete button.dataset.publish;
  }
  pause = setTimeout(predict, PAUSE_MS);
}

// A typed content type stays; a usual one follows the kind of the body.
function followFormat() {
  const { content_type: type, body_format: format } = form.elements;
  if (Object.values(CONTENT_TYPES).includes(type.value)) type.value = CONTENT_TYPES[format.value];
}

async function take(file) {
  const problem = document.querySelector("#file-problem");
  problem.textContent = file.size > LARGEST_FILE ? "The file is larger than 8 MB." : "";
  if (problem.textContent) return;
  const bytes = new Uint8Array(await file.arrayBuffer());
  const parts = [];
  for (let at = 0; at < bytes.length; at += 0x8000) {
    parts.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  }
  form.elements.body.value = btoa(parts.join(""));
  form.elements.body_format.value = "base64";
  followFormat();
  schedulePrediction();
}

// The last row of headers is empty: another one like it.
function addHeader(event) {
  const rows = form.querySelectorAll(".header-row");
  const row = rows[rows.length - 1].cloneNode(true);
  for (const input of row.querySelectorAll("input")) input.value = "";
  for (const field of row.children) {
    field.setAttribute("aria-label", field.getAttribute("aria-label").replace(/\d+$/, rows.length + 1));
  }
  rows[rows.length - 1].after(row);
  row.querySelector("input").focus();
  event.preventDefault();
}

if (form) {
  form.addEventListener("input", schedulePrediction);
  // The destination of another topology is not one of this topology.
  form.elements.topology.addEventListener("input", () => { form.elements.target.value = ""; });
  for (const choice of form.elements.body_format) choice.addEventListener("input", followFormat);
  // A link, a template or a copy has filled it, and nothing is predicted yet.
  const isFilled = form.elements.topology.value || form.elements.broker.value;
  if (isFilled && !document.querySelector("[data-publish]")) schedulePrediction();
  form.querySelector("button[name=more]").addEventListener("click", addHeader);
  const file = document.querySelector("#body-file");
  file.closest(".field").hidden = false;
  file.addEventListener("change", () => {
    if (file.files.length) take(file.files[0]);
  });
}
