// Numbers and names as people read them.

export const STANDINGS = {
  rollout: "rollout", train: "training", to_train: "moving to training", to_rollout: "moving to rollout", lost: "lost",
};
export const STATES = ["queued", "running", "completed", "failed", "timeout", "cancelled"];

/** A number with few digits; nothing for what is not known. */
export function num(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return Number(value.toPrecision(Math.max(digits, size >= 1000 ? 4 : digits))).toLocaleString("en", { maximumFractionDigits: 6 });
}

/** Seconds in the unit that fits. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** A moment of the run as m:ss or h:mm:ss. */
export function clock(seconds) {
  const whole = Math.floor(seconds), two = (each) => String(each).padStart(2, "0");
  const hours = Math.floor(whole / 3600), rest = `${Math.floor((whole % 3600) / 60)}:${two(whole % 60)}`;
  return hours ? `${hours}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}` : rest;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

export function plural(count, word, many = `${word}s`) {
  return `${num(count)} ${count === 1 ? word : many}`;
}

/** Policy versions a..b. */
export function versions(first, last) {
  return first === last ? `v${first}` : `v${first}–${last}`;
}

export function total(values) {
  return values.reduce((sum, each) => sum + each, 0);
}
