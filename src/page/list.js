// All servers, a row each: what is typed and chosen above decides which are shown and in which order. A row is made once; after
// that only what differs in it is touched, and it moves only if its place has changed.

import { get, hostedPath, later } from "./api.js";
import { highest, redraw, series, spark } from "./charts.js";
import { by, button, make, mark, put } from "./dom.js";
import * as known from "./known.js";
import { bytes, percent } from "./text.js";

const rows = new Map();
const seen = new Set();
const sampledAt = new Map();
const SAMPLES_MS = 10_000;
let list, search, order, counted, chips;
let shown = "all";
let scheduled = false;
let open = false;

// --- what stands above -----------------------------------------------------------------------------------------------

const FILTERS = [
  ["all", "All", () => true],
  ["good", "Working", (entry) => ["good", "warn"].includes(known.kind(entry))],
  ["bad", "Need attention", (entry) => ["bad", "warn"].includes(known.kind(entry))],
  ["busy", "On their way", (entry) => known.kind(entry) === "busy"],
  ["rest", "At rest", (entry) => known.kind(entry) === "rest"],
  ["external", "External", (entry) => entry.external],
];

const use = (entry, name) => entry.data.resource_usage?.[name] ?? -1;
const waits = (entry) => (entry.data.queue ? entry.data.queue.in_flight + entry.data.queue.waiting : -1);
const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.key < b.key ? -1 : 1);
const ORDERS = {
  name: ["Name", byName],
  state: ["State, worst first", (a, b) => known.SEVERITY[known.kind(a)] - known.SEVERITY[known.kind(b)] || byName(a, b)],
  cpu: ["CPU", (a, b) => use(b, "cpu_percent") - use(a, "cpu_percent") || byName(a, b)],
  memory: ["Memory", (a, b) => use(b, "memory_bytes") - use(a, "memory_bytes") || byName(a, b)],
  queue: ["Queue", (a, b) => waits(b) - waits(a) || byName(a, b)],
  restarts: ["Restarts", (a, b) => (b.data.restart_count ?? -1) - (a.data.restart_count ?? -1) || byName(a, b)],
};

export function build() {
  search = make("input", { type: "search", id: "search", placeholder: "Name, state or reason", "aria-label": "Filter servers", spellcheck: "false", on: { input: schedule } });
  order = make("select", { id: "order", "aria-label": "Sort by", on: { change: schedule } });
  for (const [value, [text]] of Object.entries(ORDERS)) order.append(make("option", { value }, text));
  counted = make("p", { id: "count", class: "soft", role: "status" });
  chips = FILTERS.map(([name, text]) => {
    const number = make("span", { class: "number" });
    const chip = button([make("span", {}, text), number].map((part) => part), () => choose(name), { class: "chip", "data-kind": name, "aria-pressed": String(name === shown) });
    return { name, chip, number };
  });
  list = make("ul", { id: "servers", class: "rows", on: { keydown: step } });
  const head = make("div", { class: "row head", "aria-hidden": "true" }, ...["State", "Server", "", "CPU", "Memory", "Queue", "Restarts"].map((text) => make("span", {}, text)));
  by("overview").replaceChildren(
    make("div", { class: "title" }, make("h1", { id: "overview-title" }, "Servers"), counted),
    make("div", { class: "tools" }, make("div", { class: "chips", role: "group", "aria-label": "Show" }, ...chips.map(({ chip }) => chip)), make("div", { class: "find" }, search, order)),
    head, list, make("div", { id: "empty", class: "empty", hidden: true }));
  known.watch(changed);
}

function choose(name) {
  shown = name;
  for (const { name: of, chip } of chips) chip.setAttribute("aria-pressed", String(of === name));
  schedule();
}

// By arrows from row to row.
function step(event) {
  const to = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  let row = to && document.activeElement.closest("li");
  if (!row) return;
  do row = row[to];
  while (row?.hidden);
  row?.querySelector("a").focus();
  event.preventDefault();
}

export function show(is) {
  open = is;
  by("overview").hidden = !is;
  if (is) schedule();
}

export const focus = (key) => rows.get(key)?.name.focus();

// --- rows ------------------------------------------------------------------------------------------------------------

const watcher = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    if (isIntersecting) seen.add(target.dataset.key);
    else seen.delete(target.dataset.key);
  }
  sample();
}, { rootMargin: "100px" });

function made(entry) {
  const cell = (kind, ...children) => make("span", { class: kind }, ...children);
  const meter = (kind, label) => {
    const svg = spark([], 1);
    const value = cell("value");
    return { svg, value, element: cell(`meter ${kind}`, make("span", { class: "label" }, label), svg, value) };
  };
  const row = { state: cell("state-word"), next: cell("next"), name: make("a", { class: "name", dir: "auto", href: `#/${entry.key.split("/").map(encodeURIComponent).join("/")}` }), about: make("bdi", { class: "about", dir: "auto" }), why: make("bdi", { class: "why", dir: "auto" }), cpu: meter("cpu", "CPU"), memory: meter("memory", "Memory"), queue: cell("value"), restarts: cell("value") };
  const labelled = (kind, label, value) => cell(kind, make("span", { class: "label" }, label), value);
  row.element = make("li", { class: "row", "data-key": entry.key },
    cell("state", make("span", { class: "dot", "aria-hidden": "true" }), row.state, row.next),
    cell("who", row.name, row.about), row.why, row.cpu.element, row.memory.element,
    labelled("queue", "Queue", row.queue), labelled("restarts", "Restarts", row.restarts));
  watcher.observe(row.element);
  return row;
}

function write(row, entry) {
  const { data } = entry;
  mark(row.element, "kind", known.kind(entry));
  put(row.state, entry.status.replace("_", " "));
  put(row.name, entry.name);
  put(row.about, known.about(entry));
  tellWhy(row, entry);
  const usage = data.resource_usage;
  put(row.cpu.value, usage?.cpu_percent != null ? percent(usage.cpu_percent) : "");
  put(row.memory.value, usage?.memory_bytes != null ? bytes(usage.memory_bytes) : "");
  const queue = data.queue;
  put(row.queue, !queue ? "" : queue.waiting ? `${queue.in_flight} + ${queue.waiting} waiting` : queue.in_flight || "");
  put(row.restarts, data.restart_count || "");
  if (entry.samples !== row.samples) {
    row.samples = entry.samples;
    const [cpu, memory] = [series(entry.samples, "cpu_percent"), series(entry.samples, "memory_bytes")];
    redraw(row.cpu.svg, cpu, highest(cpu, 5));
    redraw(row.memory.svg, memory, highest(memory, 1) * 1.25);
  }
}

// What changes with the time alone.
function tellWhy(row, entry) {
  const next = known.waits(entry);
  put(row.next, next && `again ${next}`);
  put(row.why, known.cause(entry));
}

function changed(entry, was) {
  const key = (entry ?? was).key;
  if (!entry) {
    const row = rows.get(key);
    if (row) watcher.unobserve(row.element);
    row?.element.remove();
    rows.delete(key);
    seen.delete(key);
  } else {
    let row = rows.get(key);
    if (!row) rows.set(key, (row = made(entry)));
    row.dirty = true;
  }
  schedule();
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    arrange();
  });
}

// --- which are shown, and in which order ------------------------------------------------------------------------------

function arrange() {
  const words = search.value.trim().toLowerCase();
  const isShown = FILTERS.find(([name]) => name === shown)[2];
  const entries = [...known.all()];
  for (const entry of entries) {
    const row = rows.get(entry.key);
    if (row.dirty) write(row, entry);
    row.dirty = false;
    row.element.hidden = !(isShown(entry) && known.matches(entry, words));
  }
  place(entries.sort(ORDERS[order.value][1]));
  const found = entries.filter((entry) => !rows.get(entry.key).element.hidden).length;
  put(counted, found === entries.length ? `${found}` : `${found} of ${entries.length}`);
  for (const [at, { number, chip }] of chips.entries()) {
    const many = entries.filter(FILTERS[at][2]).length;
    put(number, many);
    chip.hidden = many === 0 && !["all", shown].includes(FILTERS[at][0]);
  }
  empty(found, entries.length);
  if (entries.length && !performance.getEntriesByName("rows").length) requestAnimationFrame(() => performance.mark("rows"));
}

// Each row in its place; those that are in order already stay where they are.
function place(entries) {
  const active = list.contains(document.activeElement) ? document.activeElement : null;
  let cursor = list.firstElementChild;
  for (const entry of entries) {
    const { element } = rows.get(entry.key);
    if (cursor && element !== cursor && element === cursor.nextElementSibling) {
      const displaced = cursor;
      cursor = element;
      displaced.remove();
    }
    if (element === cursor) cursor = cursor.nextElementSibling;
    else list.insertBefore(element, cursor);
  }
  if (active && document.activeElement !== active && active.isConnected) active.focus();
}

function empty(found, count) {
  const place = by("empty");
  place.hidden = found > 0;
  if (found > 0) return;
  const none = [make("p", {}, "No server yet."), make("a", { class: "button primary", href: "#/register" }, "Register the first one")];
  place.replaceChildren(...(count === 0 ? none : [make("p", {}, "None is like that.")]));
}

// --- the charts of those that are seen ---------------------------------------------------------------------------------

function sample() {
  if (!open || document.hidden) return;
  for (const key of seen) {
    const entry = known.entry(key);
    if (!entry || entry.external || known.kind(entry) === "rest" || Date.now() - (sampledAt.get(key) ?? 0) < SAMPLES_MS) continue;
    sampledAt.set(key, Date.now());
    later(`samples of ${key}`, async () => {
      const [{ samples }, data] = await Promise.all([get(`${hostedPath(entry.name)}/samples`), get(hostedPath(entry.name))]);
      known.sampled(key, samples);
      const now = known.entry(key);
      if (now?.status === data.status) known.hosted(data);
    });
  }
}

// Times pass without an event: those of what is seen are told anew.
setInterval(() => {
  sample();
  if (!open || document.hidden) return;
  for (const key of seen) {
    const [row, entry] = [rows.get(key), known.entry(key)];
    if (row && entry && !row.element.hidden) tellWhy(row, entry);
  }
}, 1000);
