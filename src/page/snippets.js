// What to write into a client so that it uses a server of this daemon. The token is never written out: clients ask for it, or
// take it from the environment.

import { copier, make } from "./dom.js";

const shell = (word) => (/^[A-Za-z0-9_./:=@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
// Lists of words stay on one line.
const json = (value) => JSON.stringify(value, null, 2).replace(/\[\n\s+("[^\]{}]*")\n\s+\]/g, (_, words) => `[${words.replace(/\n\s+/g, " ")}]`);
const HEADER = "Bearer ${STDIOD_TOKEN}";

// `url`: an MCP endpoint; `call`: what curl sends, and where to.
export function snippets(name, url, call) {
  const remote = { type: "http", url, headers: { Authorization: HEADER } };
  const input = { type: "promptString", id: "stdiod-token", description: "Token of stdiod", password: true };
  const parts = [
    ["Claude Code", "In a shell; STDIOD_TOKEN holds a token.", `claude mcp add --transport http ${shell(name)} ${shell(url)} \\\n  --header "Authorization: Bearer $STDIOD_TOKEN"`],
    ["Claude Desktop", "In claude_desktop_config.json.", json({ mcpServers: { [name]: { command: "stdiod", args: ["connect", url], env: { STDIOD_TOKEN: "…" } } } })],
    ["VS Code", "In .vscode/mcp.json; it asks for the token once.", json({ inputs: [input], servers: { [name]: { type: "http", url, headers: { Authorization: "Bearer ${input:stdiod-token}" } } } })],
    ["Cursor", "In .cursor/mcp.json or ~/.cursor/mcp.json.", json({ mcpServers: { [name]: { url, headers: { Authorization: "Bearer ${env:STDIOD_TOKEN}" } } } })],
    ["Others", "mcpServers, as most clients have it.", json({ mcpServers: { [name]: remote } })],
    ["curl", "One call, without a session.", `curl -sS ${shell(call.url)} \\\n  -H "Authorization: Bearer $STDIOD_TOKEN" -H 'Content-Type: application/json' \\\n  -d ${shell(JSON.stringify(call.body))}`],
  ];
  return make("div", { class: "snippets" }, ...parts.map(([title, about, text]) => make("section", { class: "snippet" },
    make("div", { class: "snippet-head" }, make("h3", {}, title), make("span", { class: "soft" }, about), copier(text)),
    make("pre", { tabindex: 0, "aria-label": `For ${title}` }, text))));
}
