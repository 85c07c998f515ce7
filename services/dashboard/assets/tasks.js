// How each task fared under each range of policy versions: rows come in pages from the server.

import { byId, el, fill } from "./dom.js";
import { num, versions } from "./words.js";

/** The grid; `wants({ page, text })` is called when another page is asked for. */
export function taskGrid(wants) {
  const asked = { page: 0, text: "" };
  const search = el("input", { type: "search", placeholder: "name of a task", "aria-label": "Part of a task's name", oninput: () => turn(0) });
  const back = el("button", { type: "button", class: "quiet", "aria-label": "Tasks before", onclick: () => turn(asked.page - 1) }, "‹");
  const on = el("button", { type: "button", class: "quiet", "aria-label": "Tasks after", onclick: () => turn(asked.page + 1) }, "›");
  const where = el("span", { class: "note" });
  byId("tasks-ask").append(search, where, back, on);
  byId("tasks-ask").addEventListener("submit", (event) => event.preventDefault());

  function turn(page) {
    asked.page = Math.max(0, page);
    asked.text = search.value.trim();
    wants();
  }
  return {
    asked,
    draw(found) {
      const first = found.page * found.size;
      where.textContent = found.total ? `${num(first + 1)}–${num(first + found.rows.length)} of ${num(found.total)}` : "";
      back.disabled = found.page === 0;
      on.disabled = first + found.size >= found.total;
      fill(byId("tasks"), found.rows.length ? grids(found) : el("p", { class: "empty" }, "No execution has a reward yet."));
    },
  };
}

/** Few columns leave room for several tables side by side. */
function grids(found) {
  const high = found.versions.length > 8 ? found.rows.length : Math.ceil(found.rows.length / 3);
  const parts = [];
  for (let first = 0; first < found.rows.length; first += high) parts.push({ ...found, rows: found.rows.slice(first, first + high) });
  return el("div", { class: "grids" }, parts.map(grid));
}

function grid({ versions: heads, rows }) {
  const every = Math.ceil(heads.length / 12);
  return el("table", { class: "grid" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "task"), heads.map(([first, last], place) =>
      el("th", { scope: "col", title: versions(first, last) }, place % every ? "" : `v${first}`)))),
    el("tbody", {}, rows.map(([task, found]) => {
      const by = new Map(found.map(([place, ...cell]) => [place, cell]));
      return el("tr", {}, el("th", { scope: "row", title: task }, task), heads.map(([first, last], place) => cellOf(task, by.get(place), versions(first, last))));
    })));
}

function cellOf(task, cell, when) {
  if (!cell) return el("td", { class: "none" });
  const [count, solved, mean] = cell, told = `${task}, ${when}: solved ${solved} of ${count}, mean ${num(mean)}`;
  const made = el("td", { class: mean >= 0.85 ? "heat high" : "heat", title: told }, num(mean, 2));
  made.style.setProperty("--heat", `${Math.round(Math.min(1, Math.max(0, mean)) * 100)}%`);
  return made;
}
