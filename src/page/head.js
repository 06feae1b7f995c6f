// What stands at the top of one server: its name, its state, and the reason for it.

import { make, mark, put, said } from "./dom.js";
import * as known from "./known.js";

export function head(entry) {
  const name = make("h1", { tabindex: -1, dir: "auto" });
  const word = make("span", {});
  const state = make("p", { class: "state", role: "status" }, make("span", { class: "dot", "aria-hidden": "true" }), word);
  const about = make("bdi", { class: "soft", dir: "auto" });
  const why = make("bdi", { class: "reason", dir: "auto" });
  const crash = make("div", {});
  put(name, entry.name);
  const element = make("header", { class: "head-of-one" }, make("a", { class: "back", href: "#/" }, "All servers"), make("div", { class: "title" }, name, state), about, why, crash);
  let last;
  return {
    element,
    buttons: [],
    update(now, newCrash) {
      mark(element, "kind", known.kind(now));
      put(word, now.status.replace("_", " "));
      put(about, known.about(now));
      put(why, known.reason(now));
      why.hidden = why.textContent === "";
      const at = newCrash?.dataset.at;
      if (at !== last || !newCrash) crash.replaceChildren(...(newCrash ? [newCrash] : []));
      last = at;
    },
  };
}

// Only what makes sense now is offered; whoever has just pressed what makes none any more goes on from the next.
export function actable(top, entry) {
  const had = document.activeElement;
  for (const { element, when } of top.buttons) element.hidden = !when(entry);
  if (had?.hidden && top.element.parentNode?.contains(had)) top.buttons.find(({ element }) => !element.hidden)?.element.focus();
}

export function pairs(all) {
  const list = make("dl", {});
  for (const [name, value] of all) {
    if (value === null || value === undefined || value === "" || value === false) continue;
    list.append(make("dt", {}, name), make("dd", {}, said(value)));
  }
  return list;
}
