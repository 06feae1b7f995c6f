// One external server of a project: how it is reached and how it does, its tools, its row, and what can be done with it.

import { PROJECTS, call, externalPath, get, send } from "./api.js";
import { block, button, confirmed, copier, make, report, said, tabs } from "./dom.js";
import { actable, head, pairs } from "./head.js";
import * as known from "./known.js";
import { refresh } from "./live.js";
import { ago, oneLine, until } from "./text.js";
import { toolsPart } from "./tools.js";

const AGAIN_MS = 5000;

export function show(place, entry, signal) {
  const { name, project, key } = entry;
  const top = head(entry);
  const [facts, row, tools] = [make("div", {}), make("div", {}), toolsPart()];
  const of = `${PROJECTS}/${encodeURIComponent(project)}/mcp`;
  const askTools = async () => {
    const { tools: all, unavailable } = await get(`${of}/tools`);
    const missing = unavailable.find((server) => server.server === name);
    if (missing) throw new Error(missing.message ?? missing.error?.message ?? "it cannot be reached");
    return all.filter((tool) => tool.server === name);
  };
  const run = (tool, given) => call(`${of}/tools/call`, { name: tool, arguments: given, server: name });
  const parts = tabs(`Of ${oneLine(name)}`, [
    ["Tools", tools.element, () => tools.load(askTools, run)],
    ["Details", facts],
    ["Definition", row],
  ]);
  place.replaceChildren(top.element, actions(entry, top, () => tools.load(askTools, run)), parts.element);

  const update = (now) => {
    top.update(now, null);
    actable(top, now);
    facts.replaceChildren(pairs(details(now)));
    const { transport, config, description, enabled, shared } = now.data;
    const text = JSON.stringify({ name, description, transport, enabled, shared, config }, null, 2);
    if (row.dataset.text !== text) row.replaceChildren(copier(text), block(text, { "aria-label": "Definition" }));
    row.dataset.text = text;
  };
  const every = setInterval(() => document.hidden || refresh(key), AGAIN_MS);
  signal.addEventListener("abort", () => clearInterval(every));
  update(entry);
  return update;
}

function actions({ name, project, key }, top, connected) {
  const path = externalPath(project, name);
  const does = (word, question, method, to, body, kind, when) => {
    const act = async () => {
      if (question && !(await confirmed(question))) return;
      report("");
      element.disabled = true;
      try {
        await send(method, to, body);
        if (method === "DELETE") return known.gone(key);
        if (word === "Connect") connected();
      } catch (e) {
        report(e.message);
      }
      element.disabled = false;
      refresh(key);
    };
    const element = button(word, act, { class: kind });
    top.buttons.push({ element, when });
    return element;
  };
  const enabled = ({ data }) => data.enabled;
  return make("div", { class: "actions" },
    does("Connect", null, "POST", `${path}/connect`, undefined, "primary", (now) => enabled(now) && now.status !== "connected"),
    does("Disconnect", { title: `Disconnect ${name}?`, text: "Calls in flight fail. It is connected again when it is next used.", yes: "Disconnect" }, "POST", `${path}/disconnect`, undefined, "", (now) => !["idle", "disabled"].includes(now.status)),
    does("Enable", null, "PATCH", path, { enabled: true }, "", (now) => !enabled(now)),
    does("Disable", { title: `Disable ${name}?`, text: "Its tools are not offered any more until it is enabled.", yes: "Disable" }, "PATCH", path, { enabled: false }, "", enabled),
    does("Remove", { title: `Remove ${name}?`, text: "The row is gone for good; the server itself is somebody else's and stays.", yes: "Remove" }, "DELETE", path, undefined, "danger", () => true));
}

function details({ data }) {
  return [
    ["Project", data.project_id],
    ["Product", data.product_id],
    ["What it is", data.description],
    ["Transport", data.transport],
    ["Reached at", data.config?.url ?? [data.config?.command, ...(data.config?.args ?? [])].filter(Boolean).join(" ")],
    ["Last error", data.last_error],
    ["Next attempt", data.next_attempt_at && until(data.next_attempt_at)],
    ["Connected", data.connected_since && ago(data.connected_since)],
    ["Tools", data.tools?.join(", ")],
    ["It calls itself", data.server_info && `${data.server_info.name ?? ""} ${data.server_info.version ?? ""}`],
    ["Protocol", data.protocol_version],
    ["Shared", data.shared ? "one link for all" : "a link for each session"],
    ["Id", data.id],
  ];
}
