// What is known of every server, hosted and external: one entry each, by key. Owns the entries; whoever shows one is told when
// it has changed. An entry says what its state means: is it well, why not, and what happens next.

import { ago, cut, until } from "./text.js";

const entries = new Map();
const listeners = new Set();

export const hostedKey = (name) => `servers/${name}`;
export const externalKey = (project, name) => `projects/${project}/${name}`;
export const all = () => entries.values();
export const entry = (key) => entries.get(key);
export const count = () => entries.size;

// `changed(entry, was)`: `entry` is undefined if it is gone.
export function watch(changed) {
  listeners.add(changed);
  return () => listeners.delete(changed);
}

const tell = (now, was) => listeners.forEach((changed) => changed(now, was));

function set(now) {
  const was = entries.get(now.key);
  now.samples = was?.samples;
  entries.set(now.key, now);
  tell(now, was);
}

export function hosted(data, why) {
  const key = hostedKey(data.name);
  set({ key, external: false, name: data.name, project: null, status: data.status, data, why: why ?? entries.get(key)?.why, at: Date.now() });
}

export function external(data, why) {
  const key = externalKey(data.project_id, data.name);
  set({ key, external: true, name: data.name, project: data.project_id, status: data.status, data, why, at: Date.now() });
}

export function sampled(key, samples) {
  const known = entries.get(key);
  if (!known) return;
  known.samples = samples;
  tell(known, known);
}

export function gone(key) {
  const was = entries.get(key);
  if (was && entries.delete(key)) tell(undefined, was);
}

export const forgetAll = () => [...entries.keys()].forEach(gone);

// --- what it means ---------------------------------------------------------------------------------------------------

const KINDS = {
  good: ["ready", "connected"],
  rest: ["stopped", "asleep", "idle", "disabled"],
  busy: ["starting", "installing", "restarting", "stopping", "connecting", "reconnecting"],
};

// good, rest, busy, or bad: also of a word that is not known.
export function kind(known) {
  const found = Object.entries(KINDS).find(([, words]) => words.includes(known.status))?.[0] ?? "bad";
  return found === "good" && warnings(known).length ? "warn" : found;
}

export const SEVERITY = { bad: 0, warn: 1, busy: 2, good: 3, rest: 4 };

export function warnings(known) {
  if (known.external) return [];
  return [known.data.warning, ...(known.data.health?.warnings ?? [])].filter(Boolean);
}

export const nextAttempt = (known) => (known.external ? known.data.next_attempt_at : known.data.crash_loop?.next_attempt_at);

const SIGNALS = { 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM" };

export function crashed(crash) {
  if (crash.oom) return "ran out of memory and was killed";
  if (crash.signal) return `was ended by signal ${crash.signal}${SIGNALS[crash.signal] ? ` (${SIGNALS[crash.signal]})` : ""}`;
  return `ended with exit code ${crash.exit_code ?? "unknown"}`;
}

const LATELY_MS = 10 * 60_000;

// What a row says beside the state: why it is not well, or what there is to know although it is. Empty: nothing.
export function reason(known) {
  const next = waits(known);
  return [cause(known), next && `next attempt ${next}`].filter(Boolean).join("; ");
}

// Until its next attempt, if it waits for one.
export function waits(known) {
  const next = nextAttempt(known);
  return next && !["good", "warn", "rest"].includes(kind(known)) ? until(next) : "";
}

export function cause(known) {
  const { data } = known;
  const state = kind(known);
  if (state === "good" || state === "warn") {
    const crash = data.last_crash;
    const lately = crash && Date.now() - Date.parse(crash.at) < LATELY_MS ? `${ago(crash.at)} it ${crashed(crash)}, and was restarted` : "";
    return [...warnings(known), lately].filter(Boolean).join("; ");
  }
  if (state === "rest") return known.status === "stopped" && data.last_error ? data.last_error : asleep(data);
  const last = state === "bad" ? lastWord(data.last_crash) : "";
  const why = [data.last_error ?? known.why, last].filter(Boolean).join(": ");
  return [progress(data), why].filter(Boolean).join("; ");
}

// The last line that it wrote before it ended is the reason more often than not, if it is none of a trace.
function lastWord(crash) {
  const lines = (crash?.stderr_tail ?? []).filter((line) => line.trim() && !/^\s*(at |\^)/.test(line));
  return cut((lines.at(-1) ?? "").trim(), 200);
}

function asleep(data) {
  return data.asleep ? `${data.asleep.mode}, since ${ago(data.asleep.since)}; the next request wakes it` : "";
}

function progress(data) {
  const at = data.install ?? data.image_pull;
  if (!at) return "";
  const part = at.total ? `${Math.floor((100 * at.bytes) / at.total)} %` : "";
  return [at.phase ?? at.state, part, at.attempt > 1 && `attempt ${at.attempt}`].filter(Boolean).join(" ");
}

// What it runs, or where it is.
export function about(known) {
  const { data } = known;
  if (known.external) return cut(`${known.project} · ${data.config?.url ?? data.config?.command ?? data.transport}`, 200);
  return [data.image ?? "host programs", data.provider].filter(Boolean).join(" · ");
}

export function matches(known, words) {
  if (!words) return true;
  const text = `${known.name} ${known.project ?? ""} ${known.status} ${known.external ? "external" : "hosted"} ${about(known)} ${reason(known)}`;
  return words.split(/\s+/).every((word) => text.toLowerCase().includes(word));
}
