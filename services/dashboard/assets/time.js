// The slider: any moment of the log, step by step or played; at its end the page is live again.

import { announce, byId, el } from "./dom.js";
import { snapshot } from "./data.js";
import { clock } from "./words.js";

const STOPS = 1000;
const PLAY_SECONDS = 40;

/** The slider; `goes(at)` is called with seconds, or null for now, and may give a promise that playing waits for. */
export function timeSlider(goes) {
  let length = 0, at = null, playing = false, live = true;
  const range = el("input", { type: "range", min: "0", max: STOPS, value: STOPS, "aria-label": "Moment of the run", oninput: () => go(momentOf(Number(range.value))) });
  const marks = el("div", { class: "marks", "aria-hidden": "true" });
  const play = el("button", { type: "button", class: "play", "aria-label": "Play", "aria-keyshortcuts": "Space", onclick: () => toggle() }, "▶");
  const back = el("button", { type: "button", class: "quiet", "aria-label": "Earlier", "aria-keyshortcuts": "[", onclick: () => step(-1) }, "‹");
  const on = el("button", { type: "button", class: "quiet", "aria-label": "Later", "aria-keyshortcuts": "]", onclick: () => step(1) }, "›");
  const said = el("output", { class: "clock" });
  const now = el("button", { type: "button", class: "now", "aria-keyshortcuts": "n", onclick: () => go(null) }, "now");
  byId("time").append(play, back, el("div", { class: "track" }, marks, range), on, said, now);

  function momentOf(place) {
    if (place >= STOPS) return null;
    const wanted = (place / STOPS) * length;
    if (!snapshot) return wanted;
    return snapshot.frames.reduce((best, each) => (Math.abs(each - wanted) < Math.abs(best - wanted) ? each : best), snapshot.frames[0] ?? null);
  }
  function show() {
    range.value = at === null ? STOPS : Math.round((at / (length || 1)) * STOPS);
    const word = at === null ? (live ? "now" : "end") : clock(at);
    range.setAttribute("aria-valuetext", `${word} of ${clock(length)}`);
    said.textContent = `${at === null ? clock(length) : clock(at)} / ${clock(length)}`;
    now.textContent = live ? "now" : "end";
    now.disabled = at === null;
    byId("time").classList.toggle("past", at !== null);
  }
  function go(moment) {
    at = moment === null || moment >= length ? null : Math.max(0, moment);
    show();
    return goes(at);
  }
  function step(by) {
    if (snapshot) {
      const places = [...snapshot.frames, null], here = places.indexOf(at);
      return go(places[Math.max(0, Math.min(places.length - 1, here + by))]);
    }
    return go((at ?? length) + (by * length) / 100);
  }
  async function toggle() {
    playing = !playing;
    play.textContent = playing ? "⏸" : "▶";
    play.setAttribute("aria-label", playing ? "Pause" : "Play");
    if (!playing) return;
    if (at === null) await go(snapshot ? snapshot.frames[0] ?? null : 0);
    let before = performance.now();
    while (playing && at !== null) {
      await new Promise((resolve) => { setTimeout(resolve, snapshot ? 400 : 60); });
      const passed = (performance.now() - before) / 1000;
      before = performance.now();
      if (playing) await (snapshot ? step(1) : go(at + (passed * length) / PLAY_SECONDS));
    }
    if (playing) toggle();
  }
  return {
    step, toggle, go,
    get at() { return at; },
    /** The run is so long, and these versions were published then. */
    grow(seconds, published, isLive) {
      length = seconds;
      live = isLive;
      marks.replaceChildren(...published.map(([version, when]) => {
        const mark = el("i", { title: `v${version}` });
        mark.style.left = `${(when / (length || 1)) * 100}%`;
        return mark;
      }));
      show();
    },
    tell() { announce(at === null ? "now" : `at ${clock(at)}`); },
  };
}
