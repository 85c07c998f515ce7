// The batch that fills: its slots, its micro-steps, and which cell took which.

import { byId, el, fill } from "./dom.js";
import { num, plural, total } from "./words.js";

export function drawBatch({ batch }) {
  const host = byId("batch");
  if (!batch) {
    byId("batch-now").textContent = "";
    fill(host, el("p", { class: "empty" }, "No batch was opened yet."));
    return;
  }
  const state = batch.updated ? "updated" : batch.closed ? "closed, all queued" : "filling";
  byId("batch-now").textContent = `step ${batch.step}, ${state}`;
  const done = batch.micro_steps.filter((each) => each[3] === "done").length;
  fill(host,
    el("h3", {}, `Groups ${batch.groups.length} of ${batch.wanted}`),
    el("ol", { class: "slots", "aria-label": `${batch.groups.length} of ${batch.wanted} groups assigned` }, slots(batch)),
    el("h3", {}, `Micro-steps ${num(done)} of ${num(batch.queued)} done`),
    el("ol", { class: "micros", "aria-label": `${plural(batch.queued, "micro-step")}, ${done} done` }, batch.micro_steps.map(micro)),
    batch.queued > batch.micro_steps.length ? el("p", { class: "note" }, `the first ${batch.micro_steps.length} are shown`) : null,
    el("h3", {}, "Claims by cell"),
    batch.cells.length ? byCell(batch.cells) : el("p", { class: "empty" }, "None yet."));
}

function slots(batch) {
  return Array.from({ length: Math.min(256, Math.max(batch.wanted, batch.groups.length)) }, (_, place) => {
    const group = batch.groups[place];
    if (!group) return el("li", { class: "slot" });
    const [name, staleness, mean] = group;
    const told = `${name}: mean reward ${num(mean)}, staleness ${staleness}`;
    const made = el("li", { class: "slot filled", title: told }, el("span", { class: "unseen" }, told));
    made.style.setProperty("--heat", `${Math.round((mean ?? 0) * 100)}%`);
    return made;
  });
}

function micro([number, kind, tokens, state, cell, voided]) {
  const who = cell === null ? "" : `, cell ${cell}`, again = voided ? `, reissued ${voided} ×` : "";
  const told = `${kind} ${number}: ${state}${who}${again}, ${plural(tokens, "token")}`;
  return el("li", { class: `micro m-${state}${voided ? " again" : ""}`, title: told },
    el("span", { "aria-hidden": "true" }, cell === null ? "" : cell), el("span", { class: "unseen" }, told));
}

function byCell(rows) {
  const most = Math.max(1, ...rows.map(([, claims]) => claims)), all = total(rows.map(([, claims]) => claims));
  return el("table", { class: "bars" },
    el("thead", { class: "unseen" }, el("tr", {}, ["cell", "claims", "done", "given to others"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map(([cell, claims, done, voided]) => {
      const bar = el("span", { class: "meter", "aria-hidden": "true" }, el("i", { class: "m-done" }), el("i", { class: "m-claimed" }), el("i", { class: "m-void" }));
      [done, claims - done - voided, voided].forEach((part, place) => { bar.children[place].style.width = `${(part / most) * 100}%`; });
      return el("tr", {}, el("th", { scope: "row" }, `cell ${cell}`), el("td", { class: "fill" }, bar),
        el("td", { class: "number", title: `${claims} of ${all} claims` }, `${num(done)} / ${num(claims)}${voided ? `, ${voided} given to others` : ""}`));
    })));
}
