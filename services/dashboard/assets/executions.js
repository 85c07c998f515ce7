// The list of executions. Filter, order and page are the server's; here is one page of it.

import { byId, el, fill } from "./dom.js";
import { STATES, clock, num, span } from "./words.js";

const COLUMNS = [
  ["execution", "execution"], ["task", "task"], ["status", "status"], ["reward", "reward"], ["advantage", "adv."], ["version", "v"],
  ["dispatched", "at"], ["seconds", "took"], ["calls", "calls"], ["leaves", "leaves"], ["tokens", "longest"], ["targets", "targets"], ["cell", "cell"],
];
const TELL = {
  reward: (value) => num(value), advantage: (value) => (value === null ? "–" : `${value > 0 ? "+" : ""}${num(value)}`),
  dispatched: clock, seconds: span,
};
const SIZE = 25;

/** The list; `wants()` is called when something else is asked for, `opens(execution)` to look into one. */
export function executionList(wants, opens) {
  const asked = { status: "", text: "", sort: "dispatched", order: "down", page: 0, size: SIZE };
  const search = el("input", { type: "search", id: "search", placeholder: "execution, task or group", "aria-label": "Part of a name", oninput: () => change({ text: search.value.trim() }) });
  const status = el("select", { "aria-label": "Status", onchange: () => change({ status: status.value }) },
    el("option", { value: "" }, "any status"), STATES.map((each) => el("option", { value: each }, each)));
  byId("executions-ask").append(search, status);
  byId("executions-ask").addEventListener("submit", (event) => event.preventDefault());
  const heads = COLUMNS.map(([name, word]) => el("th", { scope: "col" },
    el("button", { type: "button", onclick: () => sort(name) }, word)));
  const body = el("tbody");
  fill(byId("executions"), el("table", { class: "list" }, el("caption", { class: "unseen" }, "Executions"), el("thead", {}, el("tr", {}, heads)), body));
  const where = el("span", { class: "note", role: "status" });
  const back = el("button", { type: "button", onclick: () => change({ page: asked.page - 1 }) }, "‹ before");
  const on = el("button", { type: "button", onclick: () => change({ page: asked.page + 1 }) }, "after ›");
  byId("executions-pages").append(back, where, on);

  function change(news) {
    Object.assign(asked, { page: 0 }, news);
    wants();
  }
  function sort(name) {
    const turned = asked.sort === name && asked.order === "down";
    change({ sort: name, order: turned ? "up" : "down" });
  }
  return {
    asked,
    draw(found) {
      const pages = Math.max(1, Math.ceil(found.total / found.size)), first = found.page * found.size;
      heads.forEach((head, place) => {
        const chosen = COLUMNS[place][0] === asked.sort;
        if (chosen) head.setAttribute("aria-sort", asked.order === "down" ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      where.textContent = found.total ? `${num(first + 1)}–${num(first + found.rows.length)} of ${num(found.total)}, page ${found.page + 1} of ${num(pages)}` : "none";
      back.disabled = found.page === 0;
      on.disabled = found.page + 1 >= pages;
      fill(body, found.rows.map((row) => line(row, found.columns, opens)));
    },
  };
}

function line(row, columns, opens) {
  const of = (name) => row[columns.indexOf(name)];
  const open = el("button", { type: "button", class: "link", onclick: () => opens(of("execution")) }, of("execution"));
  return el("tr", { title: of("detail") || null }, COLUMNS.map(([name]) => {
    if (name === "execution") return el("th", { scope: "row" }, open);
    if (name === "status") return el("td", {}, el("span", { class: `badge r-${of(name)}` }, of(name)));
    if (name === "task") return el("td", { class: "task", title: of(name) }, of(name));
    const value = of(name);
    return el("td", { class: "number" }, value === null ? "–" : (TELL[name] ?? num)(value));
  }));
}
