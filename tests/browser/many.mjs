// Very many servers, on a daemon that asks for no token; and one that goes away. `stage`: url, count, limits {paint_ms, shown_ms},
// pid (of the daemon). Prints what was measured.

import assert from "node:assert/strict";
import { begin, live, row, stage, until } from "./stage.mjs";

const { page, end } = await begin();
await page.goto(`${stage.url}/`);
await live(page);
await row(page, "servers/real").waitFor();
assert.equal(await page.locator("#servers li").count(), stage.count);
const painted = await page.evaluate(() => {
  const first = performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  return { first, rows: performance.getEntriesByName("rows")[0]?.startTime };
});
console.log("first paint after", Math.round(painted.first), "ms, all rows after", Math.round(painted.rows), "ms");
assert.ok(painted.first < stage.limits.paint_ms && painted.rows < stage.limits.paint_ms, JSON.stringify(painted));

// From the event to the row: both seen in the browser, by one clock.
await page.evaluate(() => {
  window.shown = [];
  const real = document.querySelector('#servers li[data-key="servers/real"] .state-word');
  new MutationObserver(() => window.shown.push([performance.timeOrigin + performance.now(), real.textContent])).observe(real, { childList: true, characterData: true, subtree: true });
});
const restarted = await page.evaluate(async () => {
  const answer = await fetch("/api/v1/mcp/servers/real/restart", { method: "POST" });
  return (await answer.json()).status;
});
assert.equal(restarted, "ready");
await until("the row is ready again", async () => (await page.evaluate(() => window.shown.at(-1)?.[1])) === "ready");
const log = await page.evaluate(async () => (await (await fetch("/api/v1/mcp/servers/real/logs?tail=50", { headers: { Accept: "application/json" } })).json()).entries);
const ready = log.filter(({ source, text }) => source === "lifecycle" && text.includes("-> ready")).at(-1);
const shown = (await page.evaluate(() => window.shown)).filter(([, word]) => word === "ready").at(-1)[0];
const late = shown - Date.parse(ready.at);
console.log("a transition was shown after", Math.round(late), "ms, and", stage.count, "rows are there");
assert.ok(late < stage.limits.shown_ms, `${late} ms`);

// Words leave only what they name; nothing stays behind.
const typed = Date.now();
await page.getByLabel("Filter servers").fill("row-99");
await until("the filter", async () => (await page.locator("#servers li:not([hidden])").count()) === 11);
console.log("a filter took", Date.now() - typed, "ms");
await page.getByLabel("Filter servers").fill("");
await page.getByLabel("Sort by").selectOption("state");
await until("the order", async () => (await page.locator("#servers li").first().getAttribute("data-key")) === "servers/real");

// The daemon stands still, and goes: nothing is shown as live any more.
process.kill(stage.pid, "SIGKILL");
await page.locator("#live[data-state=off]").waitFor();
await page.getByText(/Not live/).waitFor();
assert.ok(await page.evaluate(() => document.body.classList.contains("stale")));
await end();
