// The tools of a server: each with a form for its arguments, to try it, and what came of it, shown as text.

import { block, button, make, said } from "./dom.js";
import { argumentsOf } from "./schema_form.js";
import { bytes, cut, oneLine } from "./text.js";

const SHOWN = 200_000;

// `run(name, arguments)` gives the daemon's answer: { result, error }.
export function tools(all, run) {
  if (!all?.length) return [make("p", { class: "empty" }, "It has told of no tools.")];
  return all.map((tool) => one(tool, run));
}

function one(tool, run) {
  const name = String(tool.name);
  const body = make("div", { class: "tool-body" });
  const element = make("details", { class: "tool", "data-tool": name, on: { toggle: fillOnce } }, make("summary", {}, said(name, "name"), said(firstLine(tool), "soft")), body);
  function fillOnce() {
    if (!element.open || body.firstChild) return;
    const description = tool.description ? block(cut(String(tool.description), 20_000), { class: "prose", tabindex: null }) : null;
    const form = argumentsOf(tool.inputSchema);
    const outcome = make("div", { class: "outcome", "aria-live": "polite" });
    const go = make("button", { type: "submit", class: "primary" }, "Run");
    const submit = async (event) => {
      event.preventDefault();
      let given;
      try {
        given = form.value();
      } catch (e) {
        return outcome.replaceChildren(make("p", { class: "problem" }, said(e.message)));
      }
      go.disabled = true;
      outcome.replaceChildren(make("p", { class: "soft" }, "Running…"));
      outcome.replaceChildren(...(await tried(() => run(name, given))));
      go.disabled = false;
    };
    body.append(...[description, make("form", { on: { submit } }, form.element, make("div", { class: "actions" }, go)), outcome].filter(Boolean));
  }
  return element;
}

function firstLine(tool) {
  const text = String(tool.description ?? tool.title ?? "");
  return cut(text.split("\n")[0], 160);
}

async function tried(act) {
  const began = performance.now();
  let answer;
  try {
    answer = await act();
  } catch (e) {
    answer = { error: { message: e.message } };
  }
  const took = Math.round(performance.now() - began);
  const failed = Boolean(answer.error) || answer.result?.isError === true;
  const head = make("p", { class: "outcome-head", "data-failed": String(failed) }, failed ? "Failed" : "Succeeded", make("span", { class: "soft" }, ` after ${took} ms`));
  const parts = [head];
  if (answer.error) parts.push(make("p", { class: "problem" }, said(String(answer.error.message ?? "")), answer.error.code === undefined ? null : make("span", { class: "soft" }, ` (${oneLine(answer.error.code)})`)));
  const texts = contents(answer.result);
  if (texts) parts.push(block(cut(texts, SHOWN), { "aria-label": "Result" }));
  const whole = JSON.stringify(answer, null, 2);
  parts.push(make("details", {}, make("summary", {}, "The whole answer as JSON"), block(cut(whole, SHOWN), { "aria-label": "The whole answer" })));
  return parts;
}

// Texts as they are, anything else by what it is.
function contents(result) {
  if (!Array.isArray(result?.content)) return result === null || result === undefined ? "" : JSON.stringify(result, null, 2);
  const parts = result.content.map((part) => {
    if (part?.type === "text") return String(part.text);
    const size = part?.data ? `, ${bytes(String(part.data).length * 0.75)}` : "";
    return `[${part?.type ?? "something"}${part?.mimeType ? ` ${part.mimeType}` : ""}${size}]`;
  });
  if (result.structuredContent !== undefined) parts.push(JSON.stringify(result.structuredContent, null, 2));
  return parts.join("\n");
}

export function toolsPart() {
  const place = make("div", { class: "tool-list" }, make("p", { class: "soft" }, "…"));
  let shown;
  return {
    element: place,
    // `ask()` gives the list. The same list as before leaves what was written and what was answered as it is.
    async load(ask, run) {
      try {
        const all = await ask();
        const text = JSON.stringify(all);
        if (text !== shown) place.replaceChildren(...tools(all, run));
        shown = text;
      } catch (e) {
        shown = undefined;
        place.replaceChildren(make("p", { class: "problem" }, said(e.message)), button("Ask again", () => this.load(ask, run)));
      }
    },
  };
}
