// Servers out of what somebody has for another client: pasted, looked at as they would be here, and then registered all at once
// or not at all. What the text does not hold is asked for by its name.

import { sendText } from "./api.js";
import { block, button, make, mint, report, said } from "./dom.js";
import { reload } from "./live.js";
import { oneLine } from "./text.js";

const PATH = "/api/v1/mcp/import";
const EXAMPLE = `{
  "mcpServers": {
    "time": { "command": "uvx", "args": ["mcp-server-time"] }
  }
}`;

// Of a project: it is reached, and not hosted.
const isExternal = ({ definition }) => Boolean(definition?.transport ?? definition?.url);

export function importing() {
  const text = make("textarea", { id: mint("paste"), class: "code", rows: 12, spellcheck: "false", required: true, placeholder: EXAMPLE, on: { input: () => seen.replaceChildren() } });
  const project = make("input", { id: mint("project"), type: "text", spellcheck: "false", autocomplete: "off" });
  const seen = make("div", { class: "preview", "aria-live": "polite" });
  const look = make("button", { type: "submit", class: "primary" }, "Preview");
  const values = new Map();

  // What was pasted goes as it is, comments and all, as long as there is nothing to add to it.
  async function ask(dry) {
    const query = new URLSearchParams();
    if (dry) query.set("dry_run", "true");
    if (project.value.trim()) query.set("project", project.value.trim());
    const given = Object.fromEntries([...values].filter(([, value]) => value !== ""));
    const body = Object.keys(given).length ? JSON.stringify({ document: parsed(), values: given }) : text.value;
    return sendText("POST", query.size ? `${PATH}?${query}` : PATH, body);
  }

  // A text with comments is passed on as a text.
  function parsed() {
    try {
      return JSON.parse(text.value);
    } catch {
      return text.value;
    }
  }

  async function preview(event) {
    event?.preventDefault();
    report("");
    look.disabled = true;
    try {
      show((await ask(true)).servers);
    } catch (e) {
      seen.replaceChildren(make("p", { class: "problem" }, said(e.message)));
    }
    look.disabled = false;
  }

  async function register(go) {
    report("");
    go.disabled = true;
    try {
      const { servers } = await ask(false);
      reload();
      const one = servers.length === 1 && !isExternal(servers[0]);
      location.hash = one ? `#/servers/${encodeURIComponent(servers[0].name)}` : "#/";
    } catch (e) {
      report(e.message);
    }
    go.disabled = false;
  }

  function show(servers) {
    const all = new Map();
    for (const server of servers) for (const name of server.needs ?? []) all.set(name, server.about?.[name] ?? {});
    const missing = () => [...all.keys()].some((name) => !values.get(name));
    const go = button(servers.length === 1 ? "Register it" : `Register all ${servers.length}`, () => register(go), { class: "primary" });
    const ready = () => (go.disabled = servers.length === 0 || missing());
    const asked = [...all].map(([name, about]) => {
      const field = make("input", { id: mint("need"), type: about.secret === false ? "text" : "password", autocomplete: "off", spellcheck: "false", value: values.get(name) });
      field.addEventListener("input", () => {
        values.set(name, field.value);
        ready();
      });
      return make("div", { class: "field" }, make("label", { for: field.id }, said(name)), field, about.description ? said(about.description, "hint") : null);
    });
    const cards = servers.map((server) => make("li", { class: "found" },
      make("div", { class: "title" }, said(server.name, "name"), make("span", { class: "chip plain" }, oneLine(server.action))),
      server.from && server.from !== server.name ? make("p", { class: "soft" }, "Called ", said(server.from), " where it comes from.") : null,
      server.ignored?.length ? make("p", { class: "soft" }, "Means nothing here: ", said(server.ignored.join(", "))) : null,
      make("details", {}, make("summary", {}, "Its definition"), block(JSON.stringify(server.definition, null, 2), { "aria-label": "Definition" }))));
    ready();
    seen.replaceChildren(make("h2", {}, servers.length === 1 ? "One server" : `${servers.length} servers`), make("ul", { class: "plain-list" }, ...cards),
      ...(asked.length ? [make("fieldset", {}, make("legend", {}, "What it does not say"), ...asked)] : []), make("div", { class: "actions" }, go));
  }

  return make("form", { class: "card form", on: { submit: preview } },
    make("p", { class: "soft" }, "The configuration of Claude, Cursor or VS Code, a server.json of a registry, or an export of stdiod."),
    make("div", { class: "field" }, make("label", { for: text.id }, "Configuration"), text),
    make("div", { class: "field" }, make("label", { for: project.id }, "Project"), project, make("span", { class: "hint" }, "Only for servers that have a URL: they belong to a project.")),
    make("div", { class: "actions" }, look), seen);
}
