// One execution: its trajectory tree in lines; arrow keys walk over lines and over the calls in one.

import { el, fill } from "./dom.js";
import { num, plural } from "./words.js";

/** The tree; `opens(kind, name)` is called with "call" or "leaf". */
export function treeView(found, opens) {
  const most = Math.max(1, ...found.lines.map((each) => each.length));
  const items = found.lines.map((each) => treeLine(each, most, opens));
  const list = el("ul", { role: "tree", class: "tree", "aria-label": `Tree of ${found.execution}` }, items.map((item) => item.node));
  if (items.length) items[0].node.tabIndex = 0;
  list.addEventListener("keydown", (event) => walk(event, items));
  return el("div", {}, facts(found), items.length ? list : el("p", { class: "empty" }, "No call was recorded."),
    found.more ? el("p", { class: "note" }, `${plural(found.more, "more line")} not shown; gyre tree draws them all`) : null,
    found.links.map((each) => el("p", { class: "note" }, `${each.call} started ${each.first} of ${each.thread}`)),
    found.rejected.map((each) => el("p", { class: "note bad" }, `rejected: ${each.call}, ${each.reason}`)),
    found.as_recorded === false ? el("p", { class: "note bad" }, "The log records another tree than these calls give.") : null);
}

function facts(found) {
  const trained = found.training, admitted = found.admitted;
  const told = [
    `${plural(found.calls, "call")}, ${num(found.sampled)} tokens sampled`,
    found.reward === null ? `no reward, ${found.standing}` : `reward ${num(found.reward)}`,
    admitted ? `${plural(admitted.trajectories.length, "leaf", "leaves")} admitted, ${plural(admitted.targets, "target")}, advantage ${num(admitted.advantage)}` : "nothing admitted",
    trained ? `step ${trained.step}${trained.ratio === null ? "" : `, ratio ${num(trained.ratio, 5)}${trained.mask === 0 ? ", masked" : ""}`}` : "in no step",
  ];
  return el("ul", { class: "told" }, told.map((each) => el("li", {}, each)));
}

function treeLine(found, most, opens) {
  const calls = found.calls, name = calls.length === 1 ? calls[0][0] : `${calls[0][0]} … ${calls.at(-1)[0]}`;
  const parts = calls.map(([call, told, said], place) => {
    const part = el("span", { class: "part", title: `${call}: ${num(told)} tokens in, ${num(said)} sampled`, onclick: () => { choose(place); open(); } },
      el("i", { class: "t-input" }), el("i", { class: "t-sampled" }));
    part.style.flexGrow = told + said || 1;
    part.children[0].style.flexGrow = told;
    part.children[1].style.flexGrow = said;
    return part;
  });
  const bar = el("span", { class: "partbar", "aria-hidden": "true" }, parts);
  bar.style.setProperty("--from", `${(found.prefix / most) * 100}%`);
  bar.style.setProperty("--wide", `${((found.length - found.prefix) / most) * 100}%`);
  const leaf = found.leaf, chosen = el("span", { class: "chosen" });
  const node = el("li", { role: "treeitem", tabindex: "-1", class: "branch", "aria-level": found.depth + 1, onfocus: () => choose(at) },
    el("div", { class: "row" },
      el("button", { type: "button", class: "link", tabindex: "-1", onclick: () => open() }, name), chosen,
      el("span", { class: "tag" }, found.thread || "no thread"),
      found.kind === "turn" ? null : el("span", { class: "tag" }, found.kind),
      found.count > 1 ? el("span", { class: "note" }, plural(found.count, "call")) : null,
      found.versions.length ? el("span", { class: "note" }, found.versions.map((each) => `v${each}`).join(" ")) : null,
      found.delivered ? null : el("span", { class: "tag bad" }, "not delivered"),
      found.finish === "stop" ? null : el("span", { class: "tag warn" }, found.finish),
      found.fallback ? el("span", { class: "tag warn", title: found.fallback }, "fell back") : null),
    bar,
    leaf ? el("div", { class: "row leafrow" },
      el("button", { type: "button", class: `leaf ${leaf.admitted ? "admitted" : ""}`, tabindex: "-1", onclick: () => opens("leaf", leaf.id) }, leaf.role),
      el("span", { class: "note" }, leaf.why)) : null,
    found.says ? el("div", { class: "says" }, found.says) : null);
  node.style.setProperty("--depth", Math.min(8, found.depth));
  let at = calls.length - 1;

  function choose(place) {
    at = Math.max(0, Math.min(calls.length - 1, place));
    parts.forEach((part, each) => part.classList.toggle("here", each === at));
    chosen.textContent = calls.length > 1 ? calls[at][0] : "";
  }
  function open() { opens("call", calls[at][0]); }
  return { node, open, leaf: leaf && (() => opens("leaf", leaf.id)), step: (by) => choose(at + by) };
}

function walk(event, items) {
  const here = items.findIndex((item) => item.node === document.activeElement);
  if (here < 0) return;
  const to = { ArrowUp: here - 1, ArrowDown: here + 1, Home: 0, End: items.length - 1 }[event.key];
  if (to !== undefined && items[to]) {
    items[here].node.tabIndex = -1;
    items[to].node.tabIndex = 0;
    items[to].node.focus();
  } else if (event.key === "ArrowLeft") items[here].step(-1);
  else if (event.key === "ArrowRight") items[here].step(1);
  else if (event.key === "Enter") items[here].open();
  else if (event.key === "l" && items[here].leaf) items[here].leaf();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** One admitted trajectory: where its tokens came from, which carry loss, and the tokens themselves page by page. */
export function sampleView(found, turns) {
  const strip = el("div", { class: "strip", role: "img", "aria-label": `${num(found.targets)} targets of ${num(found.length)} tokens` },
    found.pieces.map(([start, stop, mark, call, version]) => {
      const piece = el("i", { class: `t-${mark}`, title: `${start}–${stop} ${mark}${call ? `, ${call}` : ""}${version === null ? "" : `, v${version}`}` });
      piece.style.flexGrow = stop - start;
      return piece;
    }));
  const last = found.start + found.tokens.length, size = 400;
  return el("div", { class: "sample" },
    el("h3", {}, `Leaf ${found.leaf}, ${found.role}`),
    el("ul", { class: "told" },
      el("li", {}, `${num(found.targets)} targets of ${num(found.length)} tokens`), el("li", {}, `weight ${num(found.weight)} each`),
      el("li", {}, `advantage ${num(found.advantage)}`)),
    found.difference ? el("p", { class: "note bad" }, `Not what the tree gives: ${found.difference}`) : null,
    strip, el("ul", { class: "legend" }, [["t-target", "target"], ["t-masked", "sampled, trained elsewhere"], ["t-input", "input"]].map(([kind, name]) =>
      el("li", {}, el("i", { class: `swatch ${kind}` }), name))),
    el("p", { class: "tokens" }, found.tokens.map(token)),
    el("nav", { class: "pages", "aria-label": "Pages of tokens" },
      el("button", { type: "button", disabled: found.start === 0, onclick: () => turns(Math.max(0, found.start - size)) }, "‹ before"),
      el("span", { class: "note" }, `tokens ${num(found.start)}–${num(last)} of ${num(found.length)}`),
      el("button", { type: "button", disabled: last >= found.length, onclick: () => turns(last) }, "after ›")));
}

function token([text, id, mark, logprob, version]) {
  const told = `${id}${logprob === null ? "" : `, log p ${num(logprob)}`}${version === null ? "" : `, v${version}`}`;
  const shown = text === null ? `${id} ` : text.replaceAll("\n", "↵\n");
  return el(mark === "target" ? "mark" : "span", { class: `t-${mark}`, title: told }, shown);
}

/** What is asked while it comes, or why it does not. */
export function waiting(host, text, bad = false) {
  fill(host, el("p", { class: bad ? "note bad" : "note", role: "status" }, text));
}
