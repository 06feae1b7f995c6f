// What somebody has for another client is pasted, looked at, completed and registered. `stage`: url, token.

import assert from "node:assert/strict";
import { begin, harmless, judge, live, row, signIn, until } from "./stage.mjs";

const { page, end } = await begin();
await signIn(page);
await live(page);

await page.getByRole("link", { name: "Register", exact: true }).click();
const pasted = { mcpServers: { "My Pasted": { command: "/usr/bin/python3", args: ["-c", "import sys; sys.stdin.read()"], env: { API_KEY: "${API_KEY}" } } } };
await page.getByLabel("Configuration").fill(JSON.stringify(pasted));
await page.getByRole("button", { name: "Preview" }).click();
await page.getByText("my-pasted", { exact: true }).waitFor();
await judge(page, "preview");
assert.equal(await page.getByRole("button", { name: "Register it" }).isDisabled(), true, "something is missing");
await page.getByLabel("API_KEY").fill("given");
await page.getByRole("button", { name: "Register it" }).click();
await page.getByRole("heading", { name: "my-pasted" }).waitFor();

// What cannot be is refused as a whole, in words.
await page.getByRole("link", { name: "Register", exact: true }).click();
await page.getByLabel("Configuration").fill('{"mcpServers": {"far": {"url": "https://far.example/mcp"}}}');
await page.getByRole("button", { name: "Preview" }).click();
await page.locator(".preview .problem").getByText("project").waitFor();
await page.getByLabel("Project").fill("shop");
await page.getByRole("button", { name: "Preview" }).click();
await page.locator(".preview .found").getByText("far", { exact: true }).waitFor();
await page.getByRole("button", { name: "Register it" }).click();
await row(page, "projects/shop/far").waitFor();
await until("both are there", async () => (await row(page, "servers/my-pasted").count()) === 1);
await harmless(page, "pasted");
await end();
