// Curves over the steps, and how executions and groups came out by policy version.

import { baseAxis, between, plot, stackedBars, trace, valueAxis } from "./charts.js";
import { byId, el, fill, legend, svg } from "./dom.js";
import { scaleOf } from "./scale.js";
import { num, percent, plural, span, total, versions } from "./words.js";

const ENDS = ["r-completed", "r-failed", "r-timeout", "r-cancelled", "r-open"];
const OUTCOMES = ["g-mixed", "g-zero", "g-one", "g-equal", "g-few"];

/** All of these; gives a function that draws sections. */
export function curvePictures() {
  legend(byId("reward-legend"), [["c-main", "training, mean of groups"], ["c-band", "least and most"], ["c-eval", "held-out"]]);
  const reward = plot(byId("reward"), 250, drawReward);
  const others = [
    plot(byId("staleness"), 150, curve("staleness", "freshest", "stalest", "mean staleness of its groups", num)),
    plot(byId("seconds"), 150, curve("seconds", null, null, "time since the step before", span)),
    plot(byId("norm"), 150, curve("gradient_norm", null, null, "gradient norm", num)),
  ];
  const ends = plot(byId("ends"), 190, drawEnds), outcomes = plot(byId("groups"), 190, drawOutcomes);
  return (found, has) => {
    if (has("steps")) {
      const steps = { ...found.steps, wanted: found.head.config?.steps ?? 0 };
      [reward, ...others].forEach((each) => each(steps));
    }
    if (has("ends")) {
      legend(byId("ends-legend"), counted(found.ends, ENDS));
      ends(found.ends);
    }
    if (has("groups")) {
      legend(byId("groups-legend"), counted(found.groups, OUTCOMES));
      outcomes(found.groups);
      drawSpread(found.groups.spread);
    }
  };
}

/** Each kind with how many there are in all. */
function counted({ kinds, rows }, classes) {
  return kinds.map((name, place) => [classes[place], `${name} ${num(total(rows.map((row) => row[place + 2])))}`]);
}

function stepAxis(root, box, wanted, last) {
  const most = Math.max(wanted, last, 1), x = scaleOf(0, most, box.left + 4, box.width - box.right - 4);
  const every = Math.max(1, Math.ceil(most / (box.width / 60)));
  baseAxis(root, box, Array.from({ length: Math.floor(most / every) + 1 }, (_, place) => [x(place * every), `${place * every}`]));
  return x;
}

function cells(steps) {
  return (row, name) => row[steps.columns.indexOf(name)];
}

function drawReward(root, box, steps) {
  const of = cells(steps), rows = steps.rows.filter((row) => of(row, "reward") !== null);
  const values = [...rows.flatMap((row) => [of(row, "worst"), of(row, "best")]), ...steps.evaluations.map((each) => each[2])];
  const low = Math.min(0, ...values), high = Math.max(1, ...values);
  const y = valueAxis(root, box, low, high, (value) => num(value));
  const x = stepAxis(root, box, steps.wanted, steps.rows.length ? of(steps.rows.at(-1), "step") : 0);
  const at = (name) => rows.map((row) => [x(of(row, "step")), y(of(row, name))]);
  root.append(svg("path", { class: "c-band", d: between(at("best"), at("worst")) }));
  root.append(svg("path", { class: "c-main", d: trace(at("reward")) }));
  at("reward").forEach(([cx, cy]) => rows.length < 60 && root.append(svg("circle", { class: "c-dot", cx, cy, r: 2.4 })));
  root.append(svg("path", { class: "c-eval", d: trace(steps.evaluations.map(([version, , mean]) => [x(version), y(mean)])) }));
  steps.evaluations.forEach(([version, , mean]) => root.append(svg("rect", { class: "c-square", x: x(version) - 3.5, y: y(mean) - 3.5, width: 7, height: 7 })));
  const stops = rows.map((row) => ({
    x: x(of(row, "step")), at: of(row, "updated"),
    text: [`step ${of(row, "step")}`, `reward ${num(of(row, "reward"))} (${num(of(row, "worst"))} to ${num(of(row, "best"))})`,
      `masked ${percent(of(row, "masked"))}, loss ${num(of(row, "loss"))}`],
  }));
  steps.evaluations.forEach(([version, at_, mean, valid]) => stops.push({ x: x(version), at: at_, text: [`version ${version}`, `held-out ${num(mean)} over ${plural(valid, "episode")}`] }));
  stops.sort((one, other) => one.x - other.x);
  const last = rows.at(-1), tested = steps.evaluations.at(-1);
  const told = last ? `Reward of the last step ${num(of(last, "reward"))}` : "No step is done yet";
  return { stops, summary: `${told}${tested ? `, held-out ${num(tested[2])} at version ${tested[0]}` : ""}.` };
}

/** A curve of one column, with a band from `least` to `most`. */
function curve(name, least, most, what, tell) {
  return (root, box, steps) => {
    const of = cells(steps), rows = steps.rows.filter((row) => of(row, name) !== null);
    const y = valueAxis(root, box, 0, Math.max(1e-9, ...rows.map((row) => of(row, most ?? name))) * 1.08, (value) => num(value));
    const x = stepAxis(root, box, steps.wanted, steps.rows.length ? of(steps.rows.at(-1), "step") : 0);
    const at = (column) => rows.map((row) => [x(of(row, "step")), y(of(row, column))]);
    if (least) root.append(svg("path", { class: "c-band", d: between(at(most), at(least)) }));
    root.append(svg("path", { class: "c-main", d: trace(at(name)) }));
    const stops = rows.map((row) => ({
      x: x(of(row, "step")), at: of(row, "updated"),
      text: [`step ${of(row, "step")}`, `${what} ${tell(of(row, name))}`, ...(least ? [`${num(of(row, least))} to ${num(of(row, most))}`] : [])],
    }));
    return { stops, summary: rows.length ? `Last step: ${what} ${tell(of(rows.at(-1), name))}.` : "No step is done yet." };
  };
}

function drawEnds(root, box, ends) {
  const stops = stackedBars(root, box, ends.rows, ENDS, ([first, last, ...counts]) =>
    [versions(first, last), ...counts.flatMap((count, kind) => (count ? [`${ends.kinds[kind]} ${num(count)}`] : []))]);
  return { stops, summary: `How executions end: ${ends.kinds.map((kind, place) => `${kind} ${num(total(ends.rows.map((row) => row[place + 2])))}`).join(", ")}.` };
}

function drawOutcomes(root, box, groups) {
  const stops = stackedBars(root, box, groups.rows, OUTCOMES, ([first, last, ...counts]) =>
    [versions(first, last), ...counts.flatMap((count, kind) => (count ? [`${groups.kinds[kind]} ${num(count)}`] : []))]);
  return { stops, summary: `Ready groups: ${groups.kinds.map((kind, place) => `${kind} ${num(total(groups.rows.map((row) => row[place + 2])))}`).join(", ")}.` };
}

/** Below the groups: how far the rewards of mixed ones lie apart. */
function drawSpread(bins) {
  let host = byId("spread");
  if (!host) {
    host = el("p", { id: "spread", class: "spread" });
    byId("groups").append(host);
  }
  const most = Math.max(1, ...bins);
  fill(host, el("span", {}, "best − worst in mixed groups"), bins.map((count, place) => {
    const bar = el("i", { title: `${place / 10} to ${(place + 1) / 10}: ${count}` });
    bar.style.height = `${Math.max(2, (count / most) * 26)}px`;
    return bar;
  }), el("span", { class: "unseen" }, bins.map((count, place) => `${place / 10}: ${count}`).join(", ")));
}
