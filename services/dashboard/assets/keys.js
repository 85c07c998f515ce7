// What keys do, and the page that says so.

import { byId, el, fill } from "./dom.js";

const KEYS = [
  ["?", "show or hide these keys"], ["/", "search the executions"], ["Space", "play or pause"], ["[  ]", "a hundredth of the run earlier, later"],
  ["n", "back to now"], ["t", "colours: system, light, dark"], ["Tab", "go through charts, lists and controls"],
  ["← →", "on a chart: from point to point; Enter goes to that moment"], ["↑ ↓ ← →", "in a tree: lines, calls in a line; Enter opens, l its leaf"], ["Esc", "close"],
];
const THEMES = ["system", "light", "dark"];

/** Bind the keys to what they do: { search, play, step(by), now }. */
export function bindKeys(does) {
  const dialog = byId("keys");
  fill(dialog, el("h2", { id: "keys-title" }, "Keys"),
    el("dl", {}, KEYS.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal());
  byId("help").addEventListener("click", toggle);
  byId("theme").addEventListener("click", turnTheme);
  wear(stored());
  const keys = { "?": toggle, "/": does.search, " ": does.play, "[": () => does.step(-1), "]": () => does.step(1), n: does.now, t: turnTheme };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=range]), select, textarea"), pressed = event.key === " " && event.target.closest("button, summary");
    if (event.ctrlKey || event.metaKey || event.altKey || typing || pressed || !keys[event.key]) return;
    if (document.querySelector("dialog[open]") && event.key !== "?" && event.key !== "t") return;
    event.preventDefault();
    keys[event.key]();
  });
}

function stored() {
  try {
    return localStorage.getItem("gyre-theme") ?? "system";
  } catch {
    return "system";
  }
}

function turnTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
  try {
    localStorage.setItem("gyre-theme", next);
  } catch { /* it lasts until the page goes */ }
  wear(next);
}

function wear(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = { system: "◐", light: "○", dark: "●" }[theme];
  byId("theme").setAttribute("aria-label", `Colours: ${theme === "system" ? "as the system has them" : theme}`);
}
