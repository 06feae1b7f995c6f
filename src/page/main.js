// The page: who is signed in, and which of its views is shown. The address says which: `#/`, `#/servers/NAME`,
// `#/projects/PROJECT/NAME`, `#/register`.

import { SERVERS, externalPath, forget, get, hostedPath, keep, token } from "./api.js";
import { by, make, report, said } from "./dom.js";
import * as external from "./external.js";
import * as hosted from "./hosted.js";
import * as known from "./known.js";
import * as list from "./list.js";
import * as live from "./live.js";
import * as register from "./register.js";
import { oneLine } from "./text.js";

let signedIn = false;
// What is shown of one server, and until when.
let open = null;
let scrolled = 0;

// --- views -----------------------------------------------------------------------------------------------------------

function parts() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

function close() {
  open?.ended.abort();
  const was = open?.key;
  open = null;
  by("detail").hidden = true;
  by("detail").replaceChildren();
  return was;
}

async function route() {
  if (!signedIn) return;
  const was = close();
  report("");
  const [kind, ...names] = parts();
  if (!kind) return overview(was);
  if (!by("overview").hidden) scrolled = scrollY;
  list.show(false);
  const ended = new AbortController();
  const key = [kind, ...names].join("/");
  open = { key, ended };
  by("detail").hidden = false;
  document.title = `${oneLine(names.at(-1) ?? "Register")} – stdiod`;
  try {
    if (kind === "register") register.show(by("detail"));
    else open.update = await one(kind, names, key, ended.signal);
  } catch (e) {
    if (open?.ended !== ended) return;
    by("detail").replaceChildren(make("p", { class: "problem" }, said(e.message)), make("a", { class: "back", href: "#/" }, "All servers"));
  }
  scrollTo(0, 0);
  by("detail").querySelector("h1")?.focus({ preventScroll: true });
}

async function one(kind, names, key, signal) {
  const isHosted = kind === "servers" && names.length === 1;
  if (!isHosted && !(kind === "projects" && names.length === 2)) throw new Error("There is nothing at this address.");
  if (!known.entry(key)) {
    const data = await get(isHosted ? hostedPath(names[0]) : externalPath(...names), signal);
    if (isHosted) known.hosted(data);
    else known.external(data);
  }
  if (signal.aborted) return undefined;
  return (isHosted ? hosted : external).show(by("detail"), known.entry(key), signal);
}

function overview(was) {
  document.title = "stdiod";
  list.show(true);
  if (was) {
    scrollTo(0, scrolled);
    list.focus(was);
  }
}

known.watch((entry, was) => {
  if (!open || (entry ?? was).key !== open.key) return;
  if (entry) open.update?.(entry);
  else location.hash = "#/";
});

addEventListener("hashchange", route);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select") || by("overview").hidden) return;
  event.preventDefault();
  by("search").focus();
});

// --- who is signed in --------------------------------------------------------------------------------------------------

function signOut(why) {
  signedIn = false;
  live.end();
  forget();
  close();
  known.forgetAll();
  list.show(false);
  for (const id of ["add", "leave", "live"]) by(id).hidden = true;
  by("sign-in").hidden = false;
  by("token").focus();
  report(why);
}

function signIn() {
  signedIn = true;
  report("");
  by("sign-in").hidden = true;
  by("add").hidden = by("live").hidden = false;
  // Where the daemon asks for no token, there is nothing to sign out of.
  by("leave").hidden = !token();
  route();
  live.begin((refusal) => signOut(refusal.message));
}

by("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  keep(by("token").value.trim());
  by("token").value = "";
  try {
    await get(`${SERVERS}?name=none`);
    signIn();
  } catch (e) {
    signOut(e.message);
  }
});
by("leave").addEventListener("click", () => signOut(""));

list.build();
get(`${SERVERS}?name=none`).then(signIn, (e) => signOut(token() ? e.message : ""));
