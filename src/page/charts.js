// Small charts of the last ten minutes, drawn from samples. Each has a text beside it that says the same.

import { draw, make } from "./dom.js";

const SPAN_MS = 10 * 60_000;
const [WIDTH, HEIGHT] = [120, 32];

// The lines of a series: a gap in time is a gap in the line. `most` is at the top.
function lines(points, most) {
  const now = Date.now();
  const x = (at) => WIDTH - ((now - at) / SPAN_MS) * WIDTH;
  const y = (value) => HEIGHT - 1 - (Math.min(value, most) / most) * (HEIGHT - 3);
  const runs = [];
  let last = -Infinity;
  for (const [at, value] of points) {
    if (now - at > SPAN_MS) continue;
    if (at - last > 30_000) runs.push([]);
    runs[runs.length - 1].push([x(at).toFixed(1), y(value).toFixed(1)]);
    last = at;
  }
  return runs;
}

export function spark(points, most) {
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" });
  redraw(svg, points, most);
  return svg;
}

export function redraw(svg, points, most) {
  const parts = lines(points, most).flatMap((run) => {
    const line = run.map((point) => point.join(" ")).join(" L");
    const area = `M${run[0][0]} ${HEIGHT} L${line} L${run[run.length - 1][0]} ${HEIGHT} Z`;
    return [draw("path", { class: "area", d: area }), draw("path", { class: "line", d: `M${line}${run.length === 1 ? " h0.01" : ""}` })];
  });
  svg.replaceChildren(...parts);
}

export const series = (samples, name) => (samples ?? []).map((sample) => [Date.parse(sample.at), sample[name]]);
export const highest = (points, least) => points.reduce((most, [, value]) => Math.max(most, value), least);

// A chart with its title, its last value and its highest. `show` makes a text of a value.
export function chart(title, points, show, least) {
  const most = highest(points, 0);
  const last = points.length ? show(points[points.length - 1][1]) : "–";
  const words = points.length ? `highest ${show(most)}` : "no sample yet";
  const caption = make("figcaption", {}, make("span", { class: "soft" }, title), make("strong", {}, last), make("span", { class: "soft small" }, words));
  return make("figure", { class: "chart" }, caption, spark(points, Math.max(most, least)));
}
