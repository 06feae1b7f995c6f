// Somebody runs the daemon with the page alone. `stage`: url, token, pid (of the sandbox of `worker`).

import assert from "node:assert/strict";
import { SOON, begin, fits, harmless, judge, live, open, row, signIn, stage, tab, until } from "./stage.mjs";

const { page, loads, end } = await begin();
const told = (...words) => console.log(...words);

// --- sign in ---
await signIn(page, "not-a-token");
await page.getByRole("alert").getByText(/not known/).waitFor();
await judge(page, "sign in");
await signIn(page);
await live(page);
const worker = row(page, "servers/worker");
await worker.getByText("ready", { exact: true }).waitFor();
assert.equal(await page.evaluate(() => sessionStorage.length + localStorage.length), 1, "the token is kept for the tab alone");
await judge(page, "the list");

// --- a sandbox is killed ---
const before = loads();
process.kill(stage.pid, "SIGKILL");
const took = await until("the reason", async () => /signal 9|exit code|ended|crash/i.test(await worker.locator(".why").textContent()), 2000);
told("a killed sandbox was shown with its reason after", took, "ms");
await worker.getByText("ready", { exact: true }).waitFor();
await until("the restart is counted", async () => (await worker.locator(".restarts .value").textContent()) === "1");
assert.equal(loads(), before, "without a reload");

// --- a tool is tried ---
await worker.getByRole("link", { name: "worker" }).click();
await page.getByRole("heading", { name: "worker" }).waitFor();
const plan = page.locator("details[data-tool=plan]");
await plan.locator("summary").first().click();
await plan.getByLabel("title").fill("move");
await plan.getByLabel("priority").selectOption({ label: "high" });
await plan.getByRole("button", { name: "Add steps" }).click();
await plan.getByLabel("what").fill("pack");
await plan.getByLabel("minutes").fill("5");
await plan.getByRole("button", { name: "Add steps" }).click();
await plan.getByLabel("what").nth(1).fill("drive");
await plan.getByLabel("dry").selectOption({ label: "true" });
await plan.getByLabel("ratio").fill("0.5");
await plan.getByRole("button", { name: "Add tags" }).click();
await plan.getByLabel("tags 1").fill("blue");
await plan.getByLabel("either").fill('{"a": [1]}');
await plan.getByRole("button", { name: "Run" }).click();
const result = plan.getByLabel("Result", { exact: true });
await result.waitFor();
assert.deepEqual(JSON.parse(await result.textContent()), {
  title: "move", priority: "high", steps: [{ what: "pack", minutes: 5 }, { what: "drive" }], options: { dry: true, ratio: 0.5, tags: ["blue"] }, either: { a: [1] },
});
await judge(page, "tools");

// --- its log, as it comes ---
const say = page.locator("details[data-tool=say]");
await say.locator("summary").first().click();
await tab(page, "Log");
const log = page.getByLabel("Lines of the log", { exact: true });
await log.getByText("it has begun").first().waitFor();
await tab(page, "Tools");
await say.getByLabel("text").fill("heard just now");
await say.getByLabel("count").fill("3");
await say.getByRole("button", { name: "Run" }).click();
await say.locator(".outcome-head[data-failed=false]").waitFor();
await tab(page, "Log");
await log.getByText("2 heard just now").waitFor();
await judge(page, "log");

// --- what there is to know, and to copy ---
await tab(page, "Definition");
await page.getByLabel("Definition").getByText('"name": "worker"').waitFor();
await tab(page, "Connect");
await page.getByLabel("For VS Code").getByText(`${stage.url}/mcp/worker`).waitFor();
assert.ok(!(await page.content()).includes(stage.token), "the token is written nowhere");
await judge(page, "connect");

// --- restart, stop, start ---
const dialog = page.getByRole("dialog");
const act = async (name) => {
  await page.getByRole("button", { name, exact: true }).click();
  if (name === "Restart") await judge(page, "the question");
  await dialog.getByRole("button", { name, exact: true }).click();
};
const state = page.locator(".head-of-one .state");
await page.getByRole("button", { name: "Stop", exact: true }).click();
await page.keyboard.press("Escape");
assert.equal(await state.textContent(), "ready", "a question that is not answered does nothing");
await act("Restart");
await until("it is on its way", async () => (await state.textContent()) !== "ready");
await state.getByText("ready").waitFor();
await act("Stop");
await state.getByText("stopped").waitFor();
await page.getByRole("button", { name: "Start", exact: true }).click();
await state.getByText("ready").waitFor();

// --- by the form ---
await page.getByRole("link", { name: "Register", exact: true }).click();
await tab(page, "Form");
await page.getByLabel("Name", { exact: true }).fill("formed");
await page.getByLabel("Command").fill(`/usr/bin/python3 -c 'import sys; sys.stdin.read()'`);
await judge(page, "the form");
await page.getByRole("button", { name: "Register", exact: true }).click();
await page.getByRole("heading", { name: "formed" }).waitFor();
await act("Remove");
await page.getByRole("heading", { name: "Servers" }).waitFor();
await until("it is gone", async () => (await row(page, "servers/formed").count()) === 0);

// --- found, by keyboard ---
await page.keyboard.press("/");
await page.keyboard.type("worker");
await until("only it is shown", async () => (await page.locator("#servers li:not([hidden])").count()) === 1);
await page.keyboard.press("Tab");
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "worker");
await page.keyboard.press("Enter");
await page.getByRole("heading", { name: "worker" }).waitFor();
assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1", "the heading is read out");

// --- in the dark, and on a phone ---
await page.emulateMedia({ colorScheme: "dark" });
const views = ["", "servers/worker", "register"];
for (const view of views) {
  await open(page, view);
  await page.locator("h1:visible").waitFor();
  await judge(page, `dark: ${view}`);
}
await page.setViewportSize({ width: 360, height: 740 });
for (const view of views) {
  await open(page, view);
  await page.locator("h1:visible").waitFor();
  await fits(page, `phone: ${view}`);
}
await open(page, "");
await row(page, "servers/worker").getByRole("link").click();
await page.getByRole("heading", { name: "worker" }).waitFor();
await judge(page, "phone");
await harmless(page, "operate");

// --- gone ---
await page.getByRole("button", { name: "Sign out" }).click();
await page.getByLabel("Token").waitFor({ timeout: SOON });
assert.equal(await page.evaluate(() => sessionStorage.length), 0);
await end();
