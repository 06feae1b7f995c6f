// One hosted server: how it is and why, what it used of late, its tools, its log, its definition, and what can be done with it.

import { call, get, hostedPath, send } from "./api.js";
import { chart, series } from "./charts.js";
import { block, button, confirmed, copier, make, mark, put, report, said, tabs } from "./dom.js";
import { actable, head, pairs } from "./head.js";
import * as known from "./known.js";
import { refresh } from "./live.js";
import { log } from "./logs.js";
import { snippets } from "./snippets.js";
import { ago, bytes, duration, oneLine, percent, until } from "./text.js";
import { toolsPart } from "./tools.js";

const SAMPLES_MS = 5000;

export function show(place, entry, signal) {
  const { name, key } = entry;
  const path = hostedPath(name);
  const top = head(entry);
  const facts = make("div", {});
  const charts = make("div", { class: "charts" });
  const tools = toolsPart();
  const logs = log(name, signal);
  const definition = make("div", {});
  const origin = location.origin;
  const askTools = async () => (await get(`${path}/tools`)).tools;
  const run = (tool, given) => call(`${path}/call`, { method: "tools/call", params: { name: tool, arguments: given } });
  const curl = { url: `${origin}${path}/call`, body: { method: "tools/list" } };
  const parts = tabs(`Of ${oneLine(name)}`, [
    ["Tools", tools.element, () => tools.load(askTools, run)],
    ["Log", logs.element, logs.run],
    ["Connect", snippets(name, `${origin}/mcp/${name}`, curl)],
    ["Definition", definition, () => define(definition, path)],
    ["Details", facts],
  ]);
  place.replaceChildren(top.element, actions(name, path, top), charts, parts.element);

  let asked = entry.status;
  const update = (now) => {
    top.update(now, crash(now));
    actable(top, now);
    facts.replaceChildren(pairs(details(now)));
    if (now.status === "ready" && asked !== "ready" && !parts.element.contains(document.activeElement)) tools.load(askTools, run);
    asked = now.status;
  };
  const sample = async () => {
    if (document.hidden) return;
    try {
      draw(charts, (await get(`${path}/samples`, signal)).samples);
    } catch {
      // The state says what is wrong.
    }
    if (!signal.aborted) refresh(key);
  };
  const every = setInterval(sample, SAMPLES_MS);
  signal.addEventListener("abort", () => clearInterval(every));
  update(entry);
  sample();
  return update;
}

function draw(place, samples) {
  const of = (name) => series(samples, name);
  place.replaceChildren(
    chart("CPU", of("cpu_percent"), percent, 5),
    chart("Memory", of("memory_bytes"), bytes, 1 << 20),
    chart("Calls", of("calls"), String, 1),
    chart("Latency", of("latency_mean_ms"), (ms) => `${Math.round(ms)} ms`, 1));
}

// --- what can be done ------------------------------------------------------------------------------------------------

const DOWN = ["stopped", "failed"];

function actions(name, path, top) {
  const does = (word, question, method, to, kind, when) => {
    const act = async () => {
      const answer = question ? await confirmed(question) : {};
      if (!answer) return;
      report("");
      element.disabled = true;
      try {
        await send(method, answer.option ? `${to}?volumes=true` : to);
        if (method === "DELETE") known.gone(known.hostedKey(name));
      } catch (e) {
        report(e.message);
      }
      refresh(known.hostedKey(name));
      element.disabled = false;
    };
    const element = button(word, act, { class: kind });
    top.buttons.push({ element, when });
    return element;
  };
  return make("div", { class: "actions" },
    does("Start", null, "POST", `${path}/start`, "primary", ({ status }) => DOWN.includes(status)),
    does("Restart", { title: `Restart ${name}?`, text: "It gets SIGTERM, and a new instance takes its place. Calls in flight fail; those that wait go to the new one.", yes: "Restart" }, "POST", `${path}/restart`, "", ({ status }) => status !== "stopped"),
    does("Stop", { title: `Stop ${name}?`, text: "It stays stopped, also when the daemon is started again, until somebody starts it.", yes: "Stop" }, "POST", `${path}/stop`, "", ({ status }) => !["stopped", "stopping"].includes(status)),
    does("Remove", { title: `Remove ${name}?`, text: "The server and its definition are gone for good. Its volumes stay unless you say otherwise.", yes: "Remove", option: "Remove what is in its volumes too" }, "DELETE", path, "danger", () => true));
}

// --- what there is to know --------------------------------------------------------------------------------------------

function crash({ data }) {
  const last = data.last_crash;
  if (!last) return null;
  const lines = last.stderr_tail?.length ? block(last.stderr_tail.join("\n"), { "aria-label": "Its last lines" }) : make("p", { class: "soft" }, "It wrote nothing to stderr.");
  const open = !["ready", "stopped", "asleep"].includes(data.status);
  return make("details", { class: "crash", open, "data-at": last.at }, make("summary", {}, `Last crash ${ago(last.at)}: it ${known.crashed(last)}`), lines);
}

function details(entry) {
  const { data } = entry;
  const usage = data.resource_usage ?? {};
  const limits = data.resource_limits ?? {};
  const of = (value, show) => (value === null || value === undefined ? "" : show(value));
  return [
    ["Up for", of(data.uptime_ms, duration)],
    ["Restarts", data.restart_count],
    ["Restart policy", data.restart_policy],
    ["Next attempt", of(known.nextAttempt(entry), until)],
    ["Queue", data.queue && `${data.queue.in_flight} in flight, ${data.queue.waiting} waiting`],
    ["CPU", `${of(usage.cpu_percent, percent)} of ${limits.cpu ?? "?"} CPU`],
    ["Memory", `${of(usage.memory_bytes, bytes)} of ${of(usage.memory_limit_bytes, bytes)}`],
    ["Disk", `${of(usage.disk_bytes, bytes)} of ${limits.disk ?? "?"}`],
    ["Processes", of(usage.pids, (pids) => `${pids} of ${limits.pids ?? "?"}`)],
    ["Provider", data.provider],
    ["Image", data.image],
    ["Network", data.network],
    ["Ports", data.ports?.join(", ")],
    ["Volumes", data.volumes?.join(", ")],
    ["Environment", data.environment?.join(", ")],
    ["It calls itself", data.server_info && `${data.server_info.name ?? ""} ${data.server_info.version ?? ""}`],
    ["Protocol", data.protocol_version],
    ["Last heard", of(data.health?.last_heard_at, ago)],
    ["Last used", of(data.last_used_at, ago)],
    ["Registered", of(data.created_at, ago)],
    ["Id", data.workspace_id],
  ];
}

async function define(place, path) {
  try {
    const text = JSON.stringify(await get(`${path}/definition`), null, 2);
    place.replaceChildren(make("div", { class: "snippet-head" }, make("span", { class: "soft" }, "As it would be registered again; values of the environment are never shown."), copier(text)), block(text, { "aria-label": "Definition" }));
  } catch (e) {
    place.replaceChildren(make("p", { class: "problem" }, said(e.message)));
  }
}
