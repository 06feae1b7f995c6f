// The log of a server, as it comes: a line each, at most LINES, with a pause, and a filter.

import { Refusal, follow, hostedPath } from "./api.js";
import { button, make, said } from "./dom.js";
import { clock, oneLine } from "./text.js";

const LINES = 1000;
const AGAIN_MS = 2000;

export function log(name, signal) {
  const lines = make("ol", { class: "log", tabindex: 0, "aria-label": "Lines of the log" });
  const state = make("span", { class: "soft", role: "status" });
  let following = true;
  const follows = make("input", { type: "checkbox", checked: true, on: { change: () => {
    following = follows.checked;
    if (following) atEnd();
  } } });
  const words = make("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines of the log", on: { input: () => [...lines.children].forEach(filter) } });
  const filter = (line) => (line.hidden = !line.textContent.toLowerCase().includes(words.value.trim().toLowerCase()));
  let atBottom = 0;
  const atEnd = () => (atBottom ||= requestAnimationFrame(() => {
    atBottom = 0;
    lines.scrollTop = lines.scrollHeight;
  }));
  const add = (_, entry) => {
    const line = make("li", { "data-source": entry.source }, make("time", { datetime: entry.at }, clock(entry.at)), make("span", { class: "source" }, oneLine(entry.source)), said(entry.text));
    if (words.value) filter(line);
    lines.append(line);
    if (lines.children.length > LINES) lines.firstChild.remove();
    if (following) atEnd();
  };
  const run = async () => {
    let tail = 200;
    while (!signal.aborted) {
      try {
        state.textContent = "Connecting";
        await follow(`${hostedPath(name)}/logs?follow=true&tail=${tail}`, signal, add, () => (state.textContent = "Following"));
      } catch (e) {
        if (signal.aborted) return;
        if (e instanceof Refusal) return (state.textContent = oneLine(e.message));
      }
      state.textContent = "Not live: trying again";
      await new Promise((done) => setTimeout(done, AGAIN_MS));
      tail = 0;
    }
  };
  const bar = make("div", { class: "log-bar" }, make("label", { class: "check" }, follows, " Keep at the end"), words, button("Clear", () => lines.replaceChildren(), { class: "quiet" }), state);
  return { element: make("div", {}, bar, lines), run };
}
