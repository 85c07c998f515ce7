// What the cells were over time, and the executions at large against the places for them: one time axis.

import { baseAxis, between, plot, trace, valueAxis } from "./charts.js";
import { byId, legend, svg } from "./dom.js";
import { moments, scaleOf } from "./scale.js";
import { STANDINGS, clock, num, percent, plural } from "./words.js";

/** Both pictures; gives a function that draws sections. */
export function cellPictures() {
  legend(byId("cells-legend"), Object.entries(STANDINGS).map(([kind, name]) => [`s-${kind}`, name]));
  legend(byId("levels-legend"), [
    ["l-running", "running, p − f"], ["l-queued", "queued, d − p"], ["l-level", "waterlevel w"], ["l-places", "places C_R"],
  ]);
  const lanes = plot(byId("cells"), 200, drawLanes), levels = plot(byId("levels"), 190, drawLevels);
  return (found) => {
    const seconds = found.head.at ?? found.head.seconds;
    byId("cells-now").textContent = Object.entries(found.cells.standings)
      .map(([kind, count]) => `${num(count)} ${STANDINGS[kind]}`).join(", ") || "none yet";
    lanes({ ...found, seconds });
    levels({ ...found, seconds });
  };
}

function timeAxis(root, box, seconds) {
  const x = scaleOf(0, Math.max(seconds, 1e-6), box.left, box.width - box.right);
  baseAxis(root, box, moments(seconds, Math.max(2, Math.floor(box.width / 90))).map((at) => [x(at), clock(at)]));
  return x;
}

function drawLanes(root, frame, { cells, steps, seconds }) {
  const tall = Math.max(6, Math.min(24, 320 / Math.max(1, cells.lanes.length)));
  const box = { ...aligned(frame), top: 16, height: 16 + tall * Math.max(1, cells.lanes.length) + 24 };
  const x = timeAxis(root, box, seconds), names = Math.ceil(12 / tall);
  const published = steps.published.filter(([, at]) => at <= seconds);
  published.forEach(([, at]) => root.append(svg("line", { class: "mark", x1: x(at), x2: x(at), y1: box.top - 2, y2: box.height - 20 })));
  cells.lanes.forEach((lane, row) => {
    const y = box.top + row * tall, high = Math.max(3, tall - (tall > 10 ? 4 : 1));
    if (row % names === 0) {
      root.append(svg("text", { class: "tick", x: box.left - 6, y: y + high / 2 + 3.5, "text-anchor": "end" }, lane.cell ? `${lane.cell}` : "core 0"));
    }
    lane.intervals.forEach(([start, end, standing]) => root.append(svg("rect", {
      class: `s-${standing}`, x: x(start), width: Math.max(0.6, x(end) - x(start)), y, height: high,
    })));
    if (lane.used !== null && !box.narrow && row % names === 0) {
      root.append(svg("text", { class: "tick", x: box.width - box.right + 6, y: y + high / 2 + 3.5 }, percent(lane.used)));
    }
  });
  let free = -Infinity;
  published.forEach(([version, at]) => {
    if (x(at) - free < 30) return;
    root.append(svg("text", { class: "tick", x: x(at), y: 10, "text-anchor": "middle" }, `v${version}`));
    free = x(at);
  });
  const edges = [...new Set([0, seconds, ...cells.lanes.flatMap((lane) => lane.intervals.map(([start]) => start))])];
  const stops = edges.sort((one, other) => one - other).map((at) => ({ x: x(at), at, text: [clock(at), ...standingsAt(cells.lanes, at)] }));
  const more = cells.more ? `, ${plural(cells.more, "more cell")} not drawn` : "";
  const now = Object.entries(cells.standings).map(([kind, count]) => `${count} ${STANDINGS[kind]}`).join(", ");
  return { stops, height: box.height, summary: `Roles of ${plural(cells.lanes.length, "cell")} over ${clock(seconds)}${more}. Now ${now || "none"}.` };
}

function standingsAt(lanes, at) {
  const here = lanes.map((lane) => [lane, lane.intervals.find(([start, end]) => start <= at && at <= end)]);
  const told = here.filter(([, each]) => each).map(([lane, each]) => `cell ${lane.cell}: ${STANDINGS[each[2]]}`);
  return told.length > 8 ? [...told.slice(0, 8), `and ${told.length - 8} more`] : told;
}

/** Both pictures have their times below each other. */
function aligned(box) {
  return { ...box, right: box.narrow ? 10 : 46 };
}

function drawLevels(root, frame, { levels, cells, counters, steps, seconds }) {
  const box = aligned(frame), rows = levels.rows.map(([at, ...rest]) => [Math.min(at, seconds), ...rest]);
  const high = Math.max(1, ...rows.map((row) => row[5]), ...cells.places.map(([, places]) => places)) * 1.08;
  const y = valueAxis(root, box, 0, high, (value) => num(value)), x = timeAxis(root, box, seconds);
  steps.published.forEach(([, at]) => root.append(svg("line", { class: "mark", x1: x(at), x2: x(at), y1: box.top, y2: box.height - box.bottom })));
  const ended = rows.length ? [...rows, [seconds, ...rows.at(-1).slice(1, 4), counters.waterlevel, counters.waterlevel]] : [];
  const points = [[0, 0, 0, 0, 0, 0], ...ended];
  const at = (value) => points.map((row) => [x(row[0]), y(value(row))]);
  const running = at((row) => row[2] - row[3]), level = at((row) => row[1] - row[3]);
  root.append(svg("path", { class: "l-running", d: between(running, at(() => 0), true) }));
  root.append(svg("path", { class: "l-queued", d: between(level, running, true) }));
  root.append(svg("path", { class: "l-most", d: rows.map(([when, , , , least, most]) =>
    `M${x(Math.max(0, when - levels.width)).toFixed(1)} ${y(most).toFixed(1)}H${x(when).toFixed(1)}V${y(least).toFixed(1)}H${x(Math.max(0, when - levels.width)).toFixed(1)}Z`).join("") }));
  root.append(svg("path", { class: "l-level", d: trace(level, true) }));
  if (cells.places.length) {
    const places = [...cells.places, [seconds, cells.places.at(-1)[1]]].map(([when, many]) => [x(when), y(many)]);
    root.append(svg("path", { class: "l-places", d: trace(places, true) }));
  }
  const stops = ended.map(([when, d, p, f, least, most]) => ({
    x: x(when), at: when,
    text: [clock(when), `d ${num(d)}, p ${num(p)}, f ${num(f)}`, `w ${num(d - f)}${least === most ? "" : `, ${num(least)} to ${num(most)} since the point before`}`],
  }));
  return { stops, summary: `Executions: dispatched ${num(counters.dispatched)}, launched ${num(counters.launched)}, ended ${num(counters.terminated)}, at large ${num(counters.waterlevel)}.` };
}
