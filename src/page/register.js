// A new server: by pasting what a client's configuration says, by a form, or by the definition itself.

import { SERVERS, sendText } from "./api.js";
import { button, make, mint, report, tabs } from "./dom.js";
import { importing } from "./importing.js";

export function show(place) {
  const parts = tabs("How to register", [["Paste", importing()], ["Form", form()], ["JSON", definition()]]);
  place.replaceChildren(
    make("header", { class: "head-of-one" }, make("a", { class: "back", href: "#/" }, "All servers"), make("h1", { tabindex: -1 }, "Register a server")),
    parts.element);
}

async function register(text, go) {
  report("");
  go.disabled = true;
  try {
    const made = await sendText("POST", `${SERVERS}?wait=false`, text);
    location.hash = `#/servers/${encodeURIComponent(made.name)}`;
  } catch (e) {
    report(e.message);
  }
  go.disabled = false;
}

// --- a form ----------------------------------------------------------------------------------------------------------

function labelled(text, control, hint) {
  control.id = mint("new");
  if (!hint) return make("div", { class: "field" }, make("label", { for: control.id }, text), control);
  const about = make("span", { id: mint("hint"), class: "hint" }, hint);
  control.setAttribute("aria-describedby", about.id);
  return make("div", { class: "field" }, make("label", { for: control.id }, text), control, about);
}

const input = (attributes = {}) => make("input", { type: "text", spellcheck: "false", autocomplete: "off", ...attributes });
const select = (all) => make("select", {}, ...all.map(([value, text]) => make("option", { value }, text)));

// As a shell would: blanks part words, quotes hold them together.
export function words(line) {
  const found = [];
  for (const match of line.matchAll(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/gs)) {
    found.push(match[0].replace(/\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'/gs, (_, escaped, double, single) => escaped ?? single ?? double.replace(/\\(["\\])/g, "$1")));
  }
  return found;
}

function form() {
  const name = input({ required: true, pattern: "[a-z0-9\\-]{1,63}", placeholder: "weather" });
  const kind = select([["host", "A program of this machine (npx, uvx, python3, …)"], ["image", "An image"]]);
  const image = input({ placeholder: "registry.example/weather:1" });
  const command = input({ placeholder: "npx -y @modelcontextprotocol/server-everything" });
  const network = select([["", "As the daemon is configured"], ["none", "None"], ["bridge", "Bridge: it may reach the internet"]]);
  const provider = select([["", "As the daemon is configured"], ["gvisor", "gVisor"], ["crun", "crun"]]);
  const policy = select([["always", "Always"], ["on-failure", "After a failure"], ["never", "Never"]]);
  const [cpu, memory, volumes] = [input({ placeholder: "0.5" }), input({ placeholder: "512M" }), input({ placeholder: "/data" })];
  const variables = make("div", { class: "items" });
  const add = () => {
    const row = make("div", { class: "pair" }, input({ "aria-label": "Name of the variable", placeholder: "NAME" }), make("input", { type: "password", "aria-label": "Value of the variable", placeholder: "value", autocomplete: "off" }), button("Remove", () => row.remove(), { class: "quiet" }));
    variables.append(row);
    row.querySelector("input").focus();
  };
  const imageField = labelled("Image", image);
  const chosen = () => {
    imageField.hidden = kind.value !== "image";
    command.required = kind.value === "host";
    image.required = kind.value === "image";
  };
  kind.addEventListener("change", chosen);
  chosen();
  const go = make("button", { type: "submit", class: "primary" }, "Register");
  const submit = (event) => {
    event.preventDefault();
    const told = words(command.value);
    const limits = Object.fromEntries([["cpu", cpu.value.trim()], ["memory", memory.value.trim()]].filter(([, value]) => value));
    const environment = Object.fromEntries([...variables.children].map((row) => [...row.querySelectorAll("input")].map((field) => field.value)).filter(([key]) => key));
    const own = kind.value === "image" ? { image: image.value.trim(), cmd: told.length ? told : undefined } : { command: told[0], args: told.slice(1) };
    const value = {
      name: name.value.trim(), ...own, restart_policy: policy.value, network: network.value || undefined, provider: provider.value || undefined,
      resource_limits: Object.keys(limits).length ? limits : undefined, environment: Object.keys(environment).length ? environment : undefined,
      volumes: volumes.value.trim() ? words(volumes.value) : undefined,
    };
    register(JSON.stringify(value), go);
  };
  return make("form", { class: "card form", on: { submit } },
    labelled("Name", name, "Small letters, digits and hyphens."), labelled("What it is", kind), imageField,
    labelled("Command", command, "As in a shell, without its variables; of an image it may be left out."),
    make("fieldset", {}, make("legend", {}, "Environment"), variables, button("Add a variable", add)),
    make("details", {}, make("summary", {}, "Limits, network and the rest"),
      labelled("CPUs", cpu), labelled("Memory", memory), labelled("Volumes", volumes, "Directories that survive a restart, with blanks between them."),
      labelled("Network", network), labelled("Provider", provider), labelled("Start it again", policy)),
    make("div", { class: "actions" }, go));
}

// --- the definition ----------------------------------------------------------------------------------------------------

function definition() {
  const text = make("textarea", { class: "code", rows: 14, spellcheck: "false", required: true });
  const go = make("button", { type: "submit", class: "primary" }, "Register");
  const submit = (event) => {
    event.preventDefault();
    register(text.value, go);
  };
  return make("form", { class: "card form", on: { submit } }, labelled("Definition", text, "As POST takes it; the definition of a server that is here is one."), make("div", { class: "actions" }, go));
}
