// From values to places: linear scales and round ticks.

/** Maps low..high to from..to. */
export function scaleOf(low, high, from, to) {
  const width = high - low || 1;
  return (value) => from + ((value - low) / width) * (to - from);
}

/** About `count` round values in low..high. */
export function ticks(low, high, count) {
  const rough = (high - low || 1) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(place * step + 0);
  return found;
}

/** Round moments, in whole seconds, minutes or hours. */
export function moments(seconds, count) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];
  const step = steps.find((each) => seconds / each <= count) ?? 86400 * Math.ceil(seconds / 86400 / count);
  const found = [];
  for (let at = 0; at <= seconds; at += step) found.push(at);
  return found;
}

/** The place in a sorted list whose `x` is nearest. */
export function nearest(stops, x) {
  let best = 0;
  stops.forEach((stop, place) => {
    if (Math.abs(stop.x - x) < Math.abs(stops[best].x - x)) best = place;
  });
  return best;
}
