// Where the page has its data from: the server it came from, or the answers that are in an exported file.

const kept = document.getElementById("answers");
export const snapshot = kept ? JSON.parse(kept.textContent) : null;

/** What the server says; throws an Error with its one line. `run` null: what is of no run. */
export async function ask(run, path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  if (snapshot) return fromSnapshot(path, query, parameters);
  const place = run === null ? `/api/${path}` : `/api/runs/${encodeURIComponent(run)}/${path}`;
  const response = await fetch(place + query).catch(() => later(place + query));
  const found = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) throw new Error(found.error);
  return found;
}

/** Hear each section of a run as it changes, and `shown` after each round of them; gives a function that ends it. */
export function listen(run, sections, hear, trouble) {
  if (snapshot) {
    for (const name of sections) hear(name, snapshot.answers.overview[name]);
    hear("shown", 0);
    return () => {};
  }
  const stream = new EventSource(`/api/runs/${encodeURIComponent(run)}/live`);
  for (const name of [...sections, "shown"]) {
    stream.addEventListener(name, (event) => hear(name, JSON.parse(event.data)));
  }
  stream.addEventListener("open", () => trouble(false));
  stream.addEventListener("error", () => trouble(true));
  return () => stream.close();
}

/** A machine that changes its network drops what is under way: once more, then it is an error. */
async function later(address) {
  await new Promise((resolve) => { setTimeout(resolve, 300); });
  return fetch(address);
}

function fromSnapshot(path, query, parameters) {
  if (path === "runs") return [{ run: snapshot.run, finished: null, began: null }];
  if (path === "executions") return pageOf(snapshot.answers.executions, parameters);
  const found = snapshot.answers[path + query] ?? (path === "tasks" ? snapshot.answers.overview.tasks : undefined);
  if (found === undefined) throw new Error("not in this file: it holds the latest executions only");
  return found;
}

/** The list of an exported file, filtered and sorted here: it is short. */
function pageOf(all, { status, text, sort = "dispatched", order = "down", page = 0, size = 25 }) {
  const place = (name) => all.columns.indexOf(name);
  const rows = all.rows.filter((row) => (!status || row[place("status")] === status)
    && (!text || row[place("execution")].includes(text) || row[place("task")].includes(text)));
  const by = place(sort), sign = order === "down" ? -1 : 1;
  rows.sort((one, other) => {
    if (one[by] === other[by]) return 0;
    if (one[by] === null || other[by] === null) return one[by] === null ? 1 : -1;
    return one[by] < other[by] ? -sign : sign;
  });
  return { ...all, rows: rows.slice(page * size, (page + 1) * size), total: rows.length, page, size };
}
