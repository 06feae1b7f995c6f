// Requests to the daemon that this page came from. The token travels in a header and is kept for this tab alone.

export const SERVERS = "/api/v1/mcp/servers";
export const PROJECTS = "/api/v1/projects";
const KEY = "stdiod-token";
// The daemon says something every 15 s, if only that it is there.
const SILENCE_MS = 40_000;

export const token = () => sessionStorage.getItem(KEY);
export const keep = (value) => sessionStorage.setItem(KEY, value);
export const forget = () => sessionStorage.removeItem(KEY);

export const hostedPath = (name) => `${SERVERS}/${encodeURIComponent(name)}`;
export const externalPath = (project, name) => `${PROJECTS}/${encodeURIComponent(project)}/mcp/servers/${encodeURIComponent(name)}`;

export class Refusal extends Error {
  constructor(status, message, data) {
    super(message);
    this.status = status;
    this.data = data ?? {};
  }
}

function ask(method, path, body, signal) {
  const headers = { Accept: "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method, headers, body, signal, cache: "no-store", credentials: "omit", redirect: "error" });
}

async function refusal(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new Refusal(response.status, error.message, error.data);
  } catch {
    return new Refusal(response.status, text || `the daemon answered with ${response.status}`);
  }
}

export async function get(path, signal) {
  const response = await ask("GET", path, undefined, signal);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// `value`: what becomes JSON; none: no body.
export const send = (method, path, value) => sendText(method, path, value === undefined ? undefined : JSON.stringify(value));

export async function sendText(method, path, text) {
  const response = await ask(method, path, text);
  if (!response.ok) throw await refusal(response);
  return response.status === 204 ? null : response.json();
}

// Also an answer that says that the tool has failed: it is the server's own, and is shown.
export async function call(path, value) {
  const response = await ask("POST", path, JSON.stringify(value));
  return response.json();
}

// Gives each event of a stream to `told(kind, data)` until it ends or `signal` ends it; `opened()` when it begins.
export async function follow(path, signal, told, opened) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal.addEventListener("abort", stop);
  let silent = setTimeout(stop, SILENCE_MS);
  try {
    const response = await ask("GET", path, undefined, own.signal);
    if (!response.ok) throw await refusal(response);
    opened?.();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silent);
      silent = setTimeout(stop, SILENCE_MS);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) tell(event, told);
    }
  } finally {
    clearTimeout(silent);
    signal.removeEventListener("abort", stop);
    own.abort();
  }
}

function tell(event, told) {
  const field = (name) => event.split("\n").filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
  const data = field("data").join("\n");
  if (data) told(field("event")[0] ?? "message", JSON.parse(data));
}

// At most so many of the page's own questions at once: a browser has six connections, and the streams need theirs.
const AT_ONCE = 2;
const waiting = new Map();
let running = 0;

// Whoever asks for the same `key` before its turn has come has it done once.
export function later(key, act) {
  waiting.set(key, act);
  next();
}

function next() {
  for (const [key, act] of waiting) {
    if (running >= AT_ONCE) return;
    waiting.delete(key);
    running += 1;
    act()
      .catch(() => {})
      .finally(() => {
        running -= 1;
        next();
      });
  }
}

export const queued = () => waiting.size;
export const drop = () => waiting.clear();
