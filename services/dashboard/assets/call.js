// One model call: the history that was known, what was new, and the answer with the tokens that carry loss marked.

import { el } from "./dom.js";
import { num, plural, span } from "./words.js";

export function callView(found) {
  const record = found.record;
  if (!record) return el("div", {}, el("h3", {}, `Call ${found.call}`), el("p", { class: "note warn" }, "It was never answered."), happened(found.events));
  return el("div", { class: "call" },
    el("h3", {}, `Call ${found.call}`),
    el("ul", { class: "told" }, told(found, record).map((each) => el("li", {}, each))),
    found.node === false ? el("p", { class: "note bad" }, found.why || "no node of the tree") : null,
    found.matched.length ? el("h4", {}, `Known before, ${plural(record.prefix_tokens, "token")}`) : null,
    found.matched_more ? el("p", { class: "note" }, `${plural(found.matched_more, "earlier message")} not shown`) : null,
    found.matched.map((each) => message(each, "known")),
    el("h4", {}, `New, ${plural(found.input_tokens ?? 0, "token")}`),
    found.new.map((each) => message(each, "new")),
    el("h4", {}, `Answer, ${plural(found.output_tokens, "token")}`),
    answer(found),
    happened(found.events));
}

function told(found, record) {
  return [
    `call ${record.index} of ${found.execution}, ${record.thread || "no thread"}${record.kind === "turn" ? "" : `, ${record.kind}`}`,
    record.parent ? `parent ${record.parent}, ${found.cut ?? ""}` : "a root",
    record.versions.map((each) => `v${each.version} × ${each.tokens}`).join(", ") || "nothing sampled",
    `cells ${record.cells.join(" → ") || "none"}, ${num(record.cached_tokens)} tokens cached`,
    `queued ${span(record.queue_seconds)}, engine ${span(record.engine_seconds)}, total ${span(record.total_seconds)}`,
    `finish ${record.finish}${record.delivered ? "" : ", not delivered"}`,
    ...(record.fallback ? [`fell back: ${record.fallback}`] : []),
  ];
}

function message(found, kind) {
  return el("article", { class: `message ${kind} by-${roleOf(found.role)}` },
    el("header", {}, el("b", {}, found.role ?? "?"), found.answer ? el("span", { class: "note" }, `answer of ${found.call}`) : null,
      found.targets ? el("mark", {}, plural(found.targets, "target")) : null),
    found.content ? el("pre", {}, typeof found.content === "string" ? found.content : JSON.stringify(found.content, null, 1)) : null,
    found.tool_calls.map((each) => el("pre", { class: "tool" }, `${each.name}(${each.arguments})`)));
}

function roleOf(role) {
  return ["system", "user", "assistant", "tool"].includes(role) ? role : "other";
}

/** The sampled text: with its marks if any of it was admitted. */
function answer(found) {
  if (!found.output.length) {
    return el("article", { class: "message by-assistant" },
      found.output_text === null ? found.reply.map((each) => message(each, "new")) : el("pre", {}, found.output_text),
      el("p", { class: "note" }, "None of it is in a training sample."));
  }
  const targets = found.output.filter(([, mark]) => mark === "target").length;
  return el("article", { class: "message by-assistant" },
    el("pre", {}, found.output.map(([text, mark, leaf]) => el(mark === "target" ? "mark" : "span", { class: `t-${mark}`, title: `${mark}, leaf ${leaf}` }, text))),
    el("p", { class: "note" }, targets ? "Marked tokens carry loss." : "Sampled, and trained through another leaf or not at all."));
}

function happened(events) {
  if (!events.length) return null;
  return el("details", {}, el("summary", {}, plural(events.length, "event")), el("ul", { class: "events" }, events.map(({ sequence, type, time, ...rest }) =>
    el("li", {}, el("b", {}, `${sequence} ${type}`), ` ${Object.entries(rest).map(([name, value]) => `${name} ${value}`).join(", ")}`, el("span", { class: "note" }, ` ${time}`)))));
}
