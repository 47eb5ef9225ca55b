// The publish form: the predicted route follows what is typed, and a file becomes the body.
// The server predicts; without this script its button does.

const form = document.querySelector("#publish-form");
const PAUSE_MS = 300;
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
    for (const name of ["prediction", "offers"]) {
      const fresh = page.getElementById(name);
      if (fresh) document.getElementById(name).replaceChildren(...fresh.childNodes);
    }
  } catch {
    // The button says what is wrong.
  }
}

function soon() {
  clearTimeout(pause);
  pause = setTimeout(predict, PAUSE_MS);
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
  soon();
}

if (form) {
  form.addEventListener("input", soon);
  const file = document.querySelector("#body-file");
  file.closest(".field").hidden = false;
  file.addEventListener("change", () => {
    if (file.files.length) take(file.files[0]);
  });
}
