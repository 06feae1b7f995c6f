// Whatever servers write is shown as text, in every view. `stage`: url, token; the server `rude`, the external one `shop/far`.

import assert from "node:assert/strict";
import { MARKUP, begin, harmless, live, open, row, signIn, stage, tab, until } from "./stage.mjs";

const { page, end } = await begin();
await signIn(page);
await live(page);
const shows = async (place, what) => {
  await until(what, async () => (await place.textContent()).includes(MARKUP));
  await harmless(page, what);
};

await open(page, "servers/rude");
await page.getByRole("heading", { name: "rude" }).waitFor();
const tools = page.locator(".tool");
const evil = tools.nth(1);
await shows(evil, "names of tools");
await evil.locator("summary").first().click();
await shows(evil.locator("form"), "names of fields");
await evil.locator("select").selectOption({ index: 1 });
await evil.getByRole("button", { name: "Run" }).click();
await shows(evil.getByLabel("Result", { exact: true }), "a result");
assert.match(await evil.getByLabel("Result", { exact: true }).textContent(), /␛\[31mred␇ ⟨U\+202E⟩gnp\.exe/, "what hides is shown");
for (const name of ["refuse", "break"]) {
  const tool = page.locator(`details[data-tool=${name}]`);
  await tool.locator("summary").first().click();
  await tool.getByRole("button", { name: "Run" }).click();
  await tool.locator(".outcome-head[data-failed=true]").waitFor();
  await shows(tool.locator(".outcome"), name);
}
const say = page.locator("details[data-tool=say]");
await say.locator("summary").first().click();
await say.getByRole("button", { name: "Run" }).click();
await tab(page, "Log");
await shows(page.getByLabel("Lines of the log", { exact: true }), "the log");
assert.match(await page.getByLabel("Lines of the log", { exact: true }).textContent(), /⟨U\+202E⟩gnp\.exe/, "what hides is shown");
await tab(page, "Details");
await shows(page.getByRole("tabpanel", { name: "Details" }), "what it calls itself");
await tab(page, "Tools");
const die = page.locator("details[data-tool=die]");
await die.locator("summary").first().click();
await die.getByRole("button", { name: "Run" }).click();
await die.locator(".outcome-head[data-failed=true]").waitFor();
await page.locator(".crash").waitFor();
await shows(page.locator(".crash"), "its last words");

await open(page, "projects/shop/far");
await page.getByRole("heading", { name: "far" }).waitFor();
await tab(page, "Details");
await shows(page.getByRole("tabpanel", { name: "Details" }), "an external server");
await tab(page, "Tools");
await shows(page.locator(".tool").nth(1), "its tools");
const refuse = page.locator("details[data-tool=refuse]");
await refuse.locator("summary").first().click();
await refuse.getByRole("button", { name: "Run" }).click();
await shows(refuse.locator(".outcome"), "its error");
await page.getByRole("button", { name: "Disconnect", exact: true }).click();
await page.getByRole("dialog").getByRole("button", { name: "Disconnect" }).click();
await page.locator(".head-of-one .state").getByText("idle").waitFor();
await page.getByRole("button", { name: "Connect", exact: true }).click();
await page.locator(".head-of-one .state").getByText("connected").waitFor();

await open(page, "");
await row(page, "projects/shop/far").getByText("connected", { exact: true }).waitFor();
await row(page, "projects/shop/gone").waitFor();
await open(page, "projects/shop/gone");
await page.getByRole("button", { name: "Connect", exact: true }).click();
await until("why it is not reached", async () => (await page.locator(".reason").textContent()).length > 10);
await harmless(page, "a failed link");
await open(page, "");
await until("in its row too", async () => (await row(page, "projects/shop/gone").locator(".why").textContent()).length > 10);
await harmless(page, "the list");
await open(page, "servers/%3Cimg%20src%3Dx%20onerror%3D%22window.pwned%3D1%22%3E");
await page.locator(".problem:visible").first().waitFor();
await harmless(page, "an address that somebody sent");
await end();
