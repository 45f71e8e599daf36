// What pages do beyond HTML: dark and light, forms that answer in place, dropped images, and the live page.
// Every page works without this file.
"use strict";

const KEY = "modelyard-theme";
const stored = localStorage.getItem(KEY);
if (stored) document.documentElement.dataset.theme = stored;

// The same page again, of which parts are taken over.
async function page(url, options) {
  const answer = await fetch(url, options);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function theme(button) {
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(KEY, next);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

function tryForm(form) {
  const answer = document.getElementById(form.dataset.answer);
  const button = form.querySelector("button[type=submit]");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const found = (await page(form.action, { method: "POST", body: new FormData(form) }));
      const part = found.getElementById(answer.id) || found.getElementById("main");
      answer.replaceChildren(...part.childNodes);
      address(answer);
    } catch (error) {
      const text = document.createElement("p");
      text.className = "error";
      text.textContent = `The server did not answer: ${error.message}`;
      answer.replaceChildren(text);
    }
    button.disabled = false;
  });
  const drop = form.querySelector(".drop");
  if (!drop) return;
  const files = drop.querySelector("input");
  const over = (event) => { event.preventDefault(); drop.classList.add("over"); };
  drop.addEventListener("dragenter", over);
  drop.addEventListener("dragover", over);
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    files.files = event.dataTransfer.files;
    form.requestSubmit();
  });
  files.addEventListener("change", () => { if (files.files.length) form.requestSubmit(); });
}

// Commands name the address that this page came from.
function address(part) {
  for (const each of part.querySelectorAll(".curl")) each.textContent = each.textContent.replace("URL/", `${location.origin}/`);
}

function live(part) {
  const pause = document.getElementById("pause");
  const summary = document.getElementById("summary");
  let paused = false;
  let spoken = 0;
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
  });
  setInterval(async () => {
    if (paused || document.hidden) return;
    // Whoever reads with the keyboard, or marks text, keeps the place.
    if (part.contains(document.activeElement) || !getSelection().isCollapsed) return;
    try {
      const found = (await page(location.href)).getElementById("live");
      if (found) part.replaceChildren(...found.childNodes);
    } catch {
      summary.textContent = "The server does not answer.";
      return;
    }
    // Screen readers are told every 20 seconds, not every two.
    if (Date.now() - spoken < 20000) return;
    spoken = Date.now();
    summary.textContent = [...part.querySelectorAll(".tiles div")]
      .map((tile) => `${tile.querySelector("dt").textContent}: ${tile.querySelector("dd").textContent}`).join(", ");
  }, Number(part.dataset.refresh));
}

document.addEventListener("DOMContentLoaded", () => {
  theme(document.getElementById("theme"));
  document.querySelectorAll("form.try").forEach(tryForm);
  address(document);
  const part = document.getElementById("live");
  if (part) live(part);
  // A link to a folded part opens it.
  const open = () => { const target = document.getElementById(location.hash.slice(1)); if (target && target.open === false) target.open = true; };
  addEventListener("hashchange", open);
  open();
});
