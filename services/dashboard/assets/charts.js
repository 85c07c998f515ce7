// Charts drawn by hand. Each can be walked with the arrow keys; what a point means is told beside it and aloud.

import { announce, el, fill, svg } from "./dom.js";
import { nearest, scaleOf, ticks } from "./scale.js";

const NARROW = 560;

/**
 * A chart in `host` that is drawn anew with its data and its width.
 * `draw(root, box, data)` draws and gives { stops, summary, height }: stops have x, text, and perhaps a moment `at`
 * to which Enter and a click lead.
 */
export function plot(host, height, draw) {
  const root = svg("svg", { "aria-hidden": "true" }), tip = el("div", { class: "tip", hidden: true });
  const cursor = svg("line", { class: "cursor", visibility: "hidden" });
  const frame = el("div", { class: "plot", tabindex: "0", role: "img" }, root, tip);
  fill(host, frame);
  let data = null, drawn = { stops: [], summary: "" }, here = -1, width = 0;

  function redraw() {
    if (data === null || !width) return;
    const box = { width, height, left: 44, right: 10, top: 8, bottom: 20, narrow: width < NARROW };
    root.replaceChildren();
    drawn = draw(root, box, data);
    const tall = drawn.height ?? height;
    root.setAttribute("viewBox", `0 0 ${width} ${tall}`);
    root.style.height = `${tall}px`;
    cursor.setAttribute("y1", box.top);
    cursor.setAttribute("y2", tall - box.bottom);
    root.append(cursor);
    frame.setAttribute("aria-label", drawn.summary);
    if (here >= drawn.stops.length) hide();
  }
  function show(place, aloud) {
    const stop = drawn.stops[place];
    if (!stop) return;
    here = place;
    cursor.setAttribute("x1", stop.x);
    cursor.setAttribute("x2", stop.x);
    cursor.setAttribute("visibility", "visible");
    fill(tip, stop.text.map((line) => el("div", {}, line)));
    tip.hidden = false;
    const room = frame.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, stop.x > frame.clientWidth / 2 ? stop.x - tip.offsetWidth - 10 : stop.x + 10))}px`;
    if (aloud) announce(stop.text.join(", "));
  }
  function hide() {
    here = -1;
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  }
  function seek() {
    const at = drawn.stops[here]?.at;
    if (at !== undefined) frame.dispatchEvent(new CustomEvent("seek", { bubbles: true, detail: at }));
  }
  frame.addEventListener("pointermove", (event) => {
    if (drawn.stops.length) show(nearest(drawn.stops, event.clientX - frame.getBoundingClientRect().left), false);
  });
  frame.addEventListener("pointerleave", hide);
  frame.addEventListener("blur", hide);
  frame.addEventListener("click", seek);
  frame.addEventListener("keydown", (event) => {
    const last = drawn.stops.length - 1;
    const to = { ArrowLeft: Math.max(0, here - 1), ArrowRight: Math.min(last, here + 1), Home: 0, End: last }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      show(to, true);
    } else if (event.key === "Enter") seek();
    else if (event.key === "Escape") hide();
  });
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width === width) return;
    width = entry.contentRect.width;
    redraw();
  }).observe(frame);
  return (news) => {
    data = news;
    redraw();
  };
}

/** Lines of the value axis with their numbers; gives the scale. */
export function valueAxis(root, box, low, high, name) {
  const y = scaleOf(low, high, box.height - box.bottom, box.top);
  for (const value of ticks(low, high, box.height < 140 ? 3 : 4)) {
    root.append(svg("line", { class: "grid", x1: box.left, x2: box.width - box.right, y1: y(value), y2: y(value) }));
    root.append(svg("text", { class: "tick", x: box.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, name(value)));
  }
  return y;
}

/** Names along the bottom, as many as fit: entries [x, text]. */
export function baseAxis(root, box, entries) {
  let free = -Infinity;
  for (const [x, text] of entries) {
    const half = text.length * 3.2;
    if (x - half < free || x + half > box.width + 2) continue;
    root.append(svg("text", { class: "tick", x, y: box.height - 5, "text-anchor": "middle" }, text));
    free = x + half + 8;
  }
}

/** A path through [x, y] points; `steps`: level from each point to the next. */
export function trace(points, steps = false) {
  return points.map(([x, y], place) => {
    if (!place) return `M${x.toFixed(1)} ${y.toFixed(1)}`;
    return steps ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `L${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}

/** What lies between two such paths. */
export function between(upper, lower, steps = false) {
  if (!upper.length) return "";
  if (!steps) return `${trace(upper)}L${trace([...lower].reverse()).slice(1)}Z`;
  const back = [...lower].reverse(), parts = [`M${back[0][0]} ${back[0][1]}`];
  back.slice(1).forEach(([x, y]) => parts.push(`V${y.toFixed(1)}H${x.toFixed(1)}`));
  return `${trace(upper, true)}L${parts.join("").slice(1)}Z`;
}

/** Bars of parts, one for each row [first, last, ...counts]; `kinds` are classes; gives the stops. */
export function stackedBars(root, box, rows, kinds, tell) {
  const high = Math.max(1, ...rows.map((row) => row.slice(2).reduce((sum, each) => sum + each, 0)));
  const y = valueAxis(root, box, 0, high, (value) => value.toLocaleString("en"));
  const room = (box.width - box.left - box.right) / Math.max(1, rows.length), bar = Math.min(46, room * 0.74);
  const stops = rows.map((row, place) => {
    const x = box.left + room * (place + 0.5);
    let below = 0;
    row.slice(2).forEach((count, kind) => {
      if (!count) return;
      const top = y(below + count);
      root.append(svg("rect", { class: kinds[kind], x: x - bar / 2, width: bar, y: top, height: Math.max(0.5, y(below) - top) }));
      below += count;
    });
    return { x, text: tell(row) };
  });
  baseAxis(root, box, rows.map((row, place) => [stops[place].x, row[0] === row[1] ? `v${row[0]}` : `v${row[0]}–${row[1]}`]));
  return stops;
}
