// Elements, made of text alone: whatever a server or a client has written is shown, never interpreted.

import { oneLine, visible } from "./text.js";

export const by = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(key, value === true ? "" : String(value));
  }
  const given = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...given.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

export const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const draw = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// A name or a sentence of somebody else's: one line, and its direction stays within it.
export const said = (text, kind) => make("bdi", { class: kind, dir: "auto" }, oneLine(text));

// The same of many lines.
export const block = (text, attributes = {}) => make("pre", { dir: "auto", tabindex: 0, ...attributes }, visible(text));

export const button = (text, act, attributes = {}) => make("button", { type: "button", on: { click: act }, ...attributes }, text);

// Only what differs is touched.
export function put(element, text) {
  const shown = oneLine(text);
  if (element.textContent !== shown) element.textContent = shown;
}

export function mark(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}

export function report(text) {
  const place = by("problem");
  place.hidden = !text;
  place.replaceChildren(...(text ? [said(text), button("Dismiss", () => report(""), { class: "quiet" })] : []));
}

// `question`: { title, text, yes, option? }. What was answered: null, or { option } with whether the option was ticked.
export function confirmed(question) {
  const dialog = by("confirm");
  by("confirm-title").textContent = oneLine(question.title);
  by("confirm-text").textContent = oneLine(question.text);
  by("confirm-yes").textContent = question.yes;
  const option = by("confirm-option");
  option.hidden = !question.option;
  option.querySelector("input").checked = false;
  option.querySelector("span").textContent = question.option ?? "";
  dialog.returnValue = "no";
  dialog.showModal();
  const answer = () => (dialog.returnValue === "yes" ? { option: option.querySelector("input").checked } : null);
  return new Promise((done) => dialog.addEventListener("close", () => done(answer()), { once: true }));
}

export function copier(text) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      it.textContent = "Copied";
    } catch {
      it.textContent = "Select and copy it by hand";
    }
    setTimeout(() => (it.textContent = "Copy"), 2000);
  };
  const it = button("Copy", copy, { class: "quiet copy", "aria-live": "polite" });
  return it;
}

let minted = 0;
export const mint = (what) => `${what}-${(minted += 1)}`;

// `parts`: [name, element, opened?]. `opened` is called when a part is first shown.
export function tabs(label, parts) {
  const list = make("div", { class: "tabs", role: "tablist", "aria-label": label });
  const panels = make("div", {});
  const all = parts.map(([name, element, opened]) => {
    const [tab, panel] = [mint("tab"), mint("panel")];
    const head = button(name, () => choose(name), { role: "tab", id: tab, "aria-controls": panel });
    const body = make("div", { role: "tabpanel", id: panel, "aria-labelledby": tab, tabindex: 0, hidden: true }, element);
    list.append(head);
    panels.append(body);
    return { name, head, body, opened };
  });
  function choose(name) {
    for (const part of all) {
      const chosen = part.name === name;
      part.head.setAttribute("aria-selected", String(chosen));
      part.head.tabIndex = chosen ? 0 : -1;
      part.body.hidden = !chosen;
      if (chosen && part.opened) {
        part.opened();
        part.opened = null;
      }
    }
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = all.findIndex((part) => part.head === document.activeElement);
    const next = all[(at + step + all.length) % all.length];
    choose(next.name);
    next.head.focus();
    event.preventDefault();
  });
  choose(parts[0][0]);
  return { element: make("div", {}, list, panels), choose };
}
