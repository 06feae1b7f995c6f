// Keeps what is known true: the list of all servers, and then every event as it happens. Says whether that goes on: what is
// shown while it does not is old, and is shown as old.

import { PROJECTS, Refusal, SERVERS, drop, externalPath, follow, get, hostedPath, later, queued } from "./api.js";
import { by } from "./dom.js";
import * as known from "./known.js";
import { clock } from "./text.js";

const WAITS_MS = [500, 1000, 2000, 5000, 10_000];
// Numbers that no event tells: queues and use of rows that nobody looks at.
const RELOAD_MS = 60_000;
// So many changes at once are asked for as one list.
const MANY = 50;

let session = null;
let heard = 0;
let trueAt = 0;
// When each was last told of by an event: a list that was asked for before that is older.
const touched = new Map();

export function begin(refused) {
  end();
  const mine = (session = new AbortController());
  run(mine.signal, refused);
}

export function end() {
  session?.abort();
  session = null;
  touched.clear();
  drop();
  show("off", "");
}

async function run(signal, refused) {
  for (let failed = 0; !signal.aborted; failed += 1) {
    show("busy", failed ? "Connecting again" : "Connecting");
    const stream = new AbortController();
    const stop = () => stream.abort();
    signal.addEventListener("abort", stop);
    const opened = async () => {
      try {
        await load(stream.signal);
        if (stream.signal.aborted) return;
        failed = 0;
        show("live", "Live");
      } catch {
        // Without the list nothing is known: once more from the beginning.
        stop();
      }
    };
    try {
      await follow("/api/v1/mcp/events", stream.signal, told, opened);
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof Refusal && (e.status === 401 || e.status === 403)) return refused(e);
    } finally {
      signal.removeEventListener("abort", stop);
      stop();
    }
    if (!signal.aborted) await pause(WAITS_MS[Math.min(failed, WAITS_MS.length - 1)], signal);
  }
}

function pause(ms, signal) {
  show("off", trueAt ? `Not live: this is what was known at ${clock(trueAt)}.` : "Not live: the daemon does not answer.");
  const at = Date.now() + ms;
  return new Promise((done) => {
    const tick = () => (by("live-wait").textContent = `Next attempt in ${Math.max(0, Math.ceil((at - Date.now()) / 1000))} s.`);
    const over = () => {
      clearInterval(every);
      clearTimeout(timer);
      by("live-now").removeEventListener("click", over);
      signal.removeEventListener("abort", over);
      by("live-wait").textContent = "";
      done();
    };
    const every = setInterval(tick, 1000);
    const timer = setTimeout(over, ms);
    tick();
    by("live-now").addEventListener("click", over);
    signal.addEventListener("abort", over);
  });
}

function show(state, text) {
  by("live").dataset.state = state;
  if (by("live-text").textContent !== text) by("live-text").textContent = text;
  by("live-now").hidden = state !== "off" || !session;
  document.body.classList.toggle("stale", state !== "live" && trueAt > 0);
}

// --- the list --------------------------------------------------------------------------------------------------------

async function load(signal) {
  const asked = (heard += 1);
  const [hosted, external] = await Promise.all([get(SERVERS, signal), get(PROJECTS, signal)]);
  const there = new Set();
  const isOlder = (key) => there.add(key) && (touched.get(key) ?? 0) > asked;
  for (const data of hosted) if (!isOlder(known.hostedKey(data.name))) known.hosted(data);
  for (const data of external) if (!isOlder(known.externalKey(data.project_id, data.name))) known.external(data);
  for (const { key } of [...known.all()]) if (!there.has(key) && (touched.get(key) ?? 0) <= asked) known.gone(key);
  trueAt = Date.now();
}

export const reload = () => later("all", () => load(session?.signal));

setInterval(() => {
  if (session && !document.hidden && by("live").dataset.state === "live") reload();
}, RELOAD_MS);

// --- what happens ----------------------------------------------------------------------------------------------------

function told(event, news) {
  if (event === "state") return;
  trueAt = Date.now();
  const isLink = event === "link";
  const key = isLink ? known.externalKey(news.project_id, news.name) : known.hostedKey(news.name);
  touched.set(key, (heard += 1));
  const was = known.entry(key);
  // At once what the event says; the rest when it is there.
  if (was && event === "transition") known.hosted({ ...was.data, status: news.status }, news.why);
  if (was && isLink) known.external({ ...was.data, status: news.status }, news.why);
  if (queued() > MANY) reload();
  else refresh(key);
}

// Asks for one server.
export function refresh(key) {
  const [kind, ...rest] = key.split("/");
  later(key, async () => {
    const asked = (heard += 1);
    try {
      const data = await get(kind === "servers" ? hostedPath(rest[0]) : externalPath(...rest), session?.signal);
      if ((touched.get(key) ?? 0) > asked) return;
      if (kind === "servers") known.hosted(data);
      else known.external(data);
    } catch (e) {
      if (e.status === 404) known.gone(key);
    }
  });
}
