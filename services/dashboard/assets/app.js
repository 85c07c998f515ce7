// The page: what is looked at stands in the address, sections come from the server as they change and are drawn.

import { drawBatch } from "./batch.js";
import { callView } from "./call.js";
import { cellPictures } from "./cells.js";
import { curvePictures } from "./curves.js";
import { ask, listen, snapshot } from "./data.js";
import { byId, el, fill } from "./dom.js";
import { executionList } from "./executions.js";
import { bindKeys } from "./keys.js";
import { taskGrid } from "./tasks.js";
import { timeSlider } from "./time.js";
import { sampleView, treeView, waiting } from "./tree.js";
import { clock, num, percent } from "./words.js";

const SECTIONS = ["head", "counters", "cells", "levels", "batch", "steps", "ends", "groups", "tasks"];
const LIST_MS = 1000;
const view = { run: null, at: null, x: null, look: null };
const ALWAYS = new Set(SECTIONS);
let live = {}, shown = {}, news = new Set(), hangUp = () => {}, listTimer = null, asking = 0;

const drawCells = cellPictures(), drawCurves = curvePictures();
const tasks = taskGrid(() => showTasks()), list = executionList(() => showList(), (execution) => look(execution));
const slider = timeSlider((at) => goTo(at));
bindKeys({ search: () => byId("search").focus(), play: () => slider.toggle(), step: (by) => slider.step(by), now: () => slider.go(null) });
byId("run").addEventListener("change", (event) => openRun(event.target.value));
byId("look").addEventListener("close", () => { view.x = null; view.look = null; keepAddress(); });
document.addEventListener("seek", (event) => slider.go(event.detail));
window.addEventListener("hashchange", () => { if (location.hash.slice(1) !== address()) followAddress(); });
begin();

async function begin() {
  try {
    const runs = await ask(null, "runs");
    fill(byId("run"), runs.map(({ run, finished }) => el("option", { value: run }, finished === false ? `${run} · under way` : run)));
    if (!runs.length) trouble("No run here yet: gyre demo starts one.");
    else await followAddress(runs[0].run);
  } catch (error) {
    trouble(error.message);
  }
}

/** What the address says is shown; without one, this run. */
async function followAddress(first) {
  const told = new URLSearchParams(location.hash.slice(1));
  const run = told.get("run") ?? view.run ?? first;
  if (run !== view.run) openRun(run);
  const at = told.has("at") ? Number(told.get("at")) : null;
  if (at !== view.at && Number.isFinite(at ?? 0)) { await ready(); slider.go(at); }
  if (told.has("x")) look(told.get("x"), told.get("look"));
}

function openRun(run) {
  hangUp();
  Object.assign(view, { run, at: null });
  live = {};
  byId("run").value = run;
  document.title = `${run} · gyre`;
  hangUp = listen(run, SECTIONS, hear, (lost) => { if (lost) trouble("The dashboard does not answer; trying again."); else trouble(live.head?.problem ?? ""); });
  keepAddress();
}

function hear(name, section) {
  if (name !== "shown") { live[name] = section; news.add(name); return; }
  if (!live.head || !live.levels) return;
  trouble(live.head.problem);
  if (live.head.state === "opening") return;
  slider.grow(live.head.seconds, live.steps.published, live.head.state === "live");
  if (view.at === null) draw(live, shown === live ? news : ALWAYS);
  else drawState(shown);
  news = new Set();
  document.documentElement.dataset.shown = live.head.sequence;
  if (view.at === null && listTimer === null) {
    listTimer = setTimeout(() => { listTimer = null; showList(); if (tasks.asked.page || tasks.asked.text) showTasks(); }, document.documentElement.dataset.listed ? LIST_MS : 0);
  }
}

function ready() {
  return new Promise((resolve) => {
    const wait = () => (live.head && live.levels ? resolve() : setTimeout(wait, 20));
    wait();
  });
}

/** Draw what changed; the rest stands as it is. */
function draw(found, changed = ALWAYS) {
  const has = (...names) => names.some((name) => changed.has(name));
  shown = found;
  drawState(found);
  if (has("counters", "steps", "cells")) drawFacts(found);
  if (has("head", "cells", "levels", "steps")) drawCells(found);
  if (has("batch")) drawBatch(found);
  drawCurves(found, has);
  if (has("tasks") && !tasks.asked.page && !tasks.asked.text) tasks.draw(found.tasks);
}

function drawState({ head }) {
  const state = byId("state"), ended = live.head.ends;
  const now = ended.aborted ? "aborted" : ended.finished ? "finished" : live.head.state;
  const read = live.head.state === "reading" ? ` ${percent(live.head.sequence / live.head.head)}` : "";
  const kind = view.at !== null ? "past" : snapshot ? "archive" : now;
  state.className = `state is-${kind}`;
  state.textContent = view.at !== null ? `as of ${clock(view.at)}` : snapshot ? `as of ${snapshot.exported.slice(0, 16).replace("T", " ")} UTC` : `${now}${read}`;
  state.title = ended.aborted ? ended.aborted[1] : `sequence ${num(head.sequence)}`;
}

function drawFacts({ head, counters, steps, cells }) {
  const last = steps.rows.at(-1), of = (name) => (last ? last[steps.columns.indexOf(name)] : null), config = head.config ?? {};
  const facts = [
    ["step", `${num(of("step") ?? 0)}`, config.steps ? `of ${num(config.steps)}` : ""],
    ["dispatched d", num(counters.dispatched), ""], ["launched p", num(counters.launched), `${num(counters.running)} running`],
    ["ended f", num(counters.terminated), `${num(counters.scored)} scored`], ["waterlevel w", num(counters.waterlevel), `${num(counters.queued)} queued`],
    ["places C_R", num(cells.places.length ? cells.places.at(-1)[1] : 0), ""], ["ready groups", num(counters.ready), config.groups ? `B = ${config.groups}` : ""],
    ["version", `v${num(counters.published)}`, "published"], ["reward", num(of("reward")), "last step"], ["staleness", num(of("staleness")), "last step"],
  ];
  fill(byId("facts"), facts.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null))));
}

async function goTo(at) {
  view.at = at;
  keepAddress();
  const mine = (asking += 1);
  try {
    const found = at === null ? live : await ask(view.run, "overview", { at: at.toFixed(3) });
    if (mine !== asking) return;
    trouble(live.head.problem);
    draw(found);
    document.documentElement.dataset.at = at === null ? "now" : at.toFixed(3);
    if (!snapshot) await showList();
  } catch (error) {
    if (mine === asking) trouble(error.message);
  }
}

async function showList() {
  const at = view.at === null || snapshot ? null : view.at.toFixed(3), { ...asked } = list.asked;
  try {
    const found = await ask(view.run, "executions", { at, ...asked });
    if (JSON.stringify(asked) !== JSON.stringify(list.asked)) return;
    list.draw(found);
    document.documentElement.dataset.listed = found.total;
  } catch (error) {
    trouble(error.message);
  }
}

async function showTasks() {
  try {
    tasks.draw(await ask(view.run, "tasks", { at: view.at === null ? null : view.at.toFixed(3), ...tasks.asked }));
  } catch (error) {
    trouble(error.message);
  }
}

/** Look into an execution; `what`: "call:NAME" or "leaf:NAME" of it. */
async function look(execution, what = null) {
  const dialog = byId("look"), tree = el("div", { class: "pane" }), detail = el("div", { class: "pane detail", tabindex: "0", role: "region", "aria-label": "Call or sample" });
  Object.assign(view, { x: execution, look: what });
  keepAddress();
  fill(dialog, el("header", {}, el("h2", { id: "look-title" }, execution), el("form", { method: "dialog" }, el("button", { "aria-label": "Close" }, "✕"))),
    el("div", { class: "panes" }, tree, detail));
  if (!dialog.open) dialog.showModal();
  waiting(tree, "folding its records …");
  waiting(detail, "Choose a call or a leaf.");
  const opens = (kind, name, from = 0) => openDetail(detail, execution, kind, name, from);
  try {
    fill(tree, treeView(await ask(view.run, `tree/${encodeURIComponent(execution)}`), opens));
    if (!what) tree.querySelector("[role=treeitem]")?.focus();
  } catch (error) {
    waiting(tree, error.message, true);
  }
  if (what) opens(...what.split(":"));
}

async function openDetail(host, execution, kind, name, from) {
  view.look = `${kind}:${name}`;
  keepAddress();
  waiting(host, "reading …");
  try {
    if (kind === "call") fill(host, callView(await ask(view.run, `call/${encodeURIComponent(name)}`)));
    else {
      const found = await ask(view.run, `sample/${encodeURIComponent(execution)}/${encodeURIComponent(name)}`, { from: String(from) });
      fill(host, sampleView(found, (start) => openDetail(host, execution, kind, name, start)));
    }
    host.scrollTop = 0;
  } catch (error) {
    waiting(host, error.message, true);
  }
}

function address() {
  const told = { run: view.run, at: view.at === null ? null : view.at.toFixed(1), x: view.x, look: view.look };
  return new URLSearchParams(Object.entries(told).filter(([, value]) => value !== null)).toString();
}

function keepAddress() {
  history.replaceState(null, "", `#${address()}`);
}

function trouble(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}
