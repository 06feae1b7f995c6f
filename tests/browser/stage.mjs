// What every scenario in the browser needs: Debian's Chromium, a page that is watched for requests to elsewhere, for errors and
// for texts that can hide something, and `axe-core` as a judge. Modules come from BROWSER_MODULES.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.BROWSER_MODULES}/`);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const MARKUP = "<img src=x onerror=";
export const SOON = 20_000;

export const stage = JSON.parse(process.argv[2]);

export async function begin(options = {}) {
  const arguments_ = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"];
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: arguments_ });
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(SOON);
  const page = await context.newPage();
  const faults = [];
  let loads = 0;
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== stage.url) faults.push(`a request to ${url.href}`);
    if (request.isNavigationRequest()) loads += 1;
  });
  page.on("pageerror", (error) => faults.push(`an error in the page: ${error.stack ?? error}`));
  page.on("console", (message) => {
    // Of refusals that a scenario asks for the browser writes a line of its own.
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) faults.push(`in the console: ${message.text()}`);
  });
  return {
    page,
    loads: () => loads,
    async end() {
      assert.deepEqual(faults, []);
      await browser.close();
    },
  };
}

export async function signIn(page, secret = stage.token) {
  await page.goto(`${stage.url}/`);
  await page.getByLabel("Token").fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
}

export const live = (page) => page.locator("#live[data-state=live]").waitFor();
export const row = (page, name) => page.locator(`#servers li[data-key="${name}"]`);
export const open = (page, name) => page.goto(`${stage.url}/#/${name}`);
export const tab = (page, name) => page.getByRole("tab", { name }).click();

// Waits until `is()` is true; the time it took.
export async function until(what, is, limit = SOON) {
  const began = Date.now();
  while (!(await is())) {
    assert.ok(Date.now() - began < limit, `${what}: not within ${limit} ms`);
    await new Promise((done) => setTimeout(done, 20));
  }
  return Date.now() - began;
}

// Nobody is kept out by how the page is made.
export async function judge(page, what) {
  const found = await page.evaluate(`${AXE}; axe.run(document, { resultTypes: ["violations"] })`);
  const serious = found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  const told = serious.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map(({ html, any }) => `${html} ${any[0]?.message ?? ""}`).join(" | ")}`);
  assert.deepEqual(told, [], what);
}

// Nothing of what servers wrote has become an element, ran, or hides in what is shown.
export async function harmless(page, what) {
  const found = await page.evaluate(() => {
    const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f]/;
    const texts = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) if (hidden.test(walk.currentNode.data)) texts.push(walk.currentNode.data);
    for (const element of document.querySelectorAll("[title], [aria-label], [placeholder]")) {
      for (const { value } of element.attributes) if (hidden.test(value)) texts.push(value);
    }
    const made = [...document.querySelectorAll("body img:not(.brand img), body script, body b, iframe, object, embed")];
    return { texts, made: made.map((element) => element.outerHTML), ran: window.pwned !== undefined, title: hidden.test(document.title) };
  });
  assert.deepEqual(found, { texts: [], made: [], ran: false, title: false }, what);
}

// No wider than the window.
export async function fits(page, what) {
  const [inner, whole] = await page.evaluate(() => [innerWidth, document.documentElement.scrollWidth]);
  assert.ok(whole <= inner, `${what}: ${whole} pixels in a window of ${inner}`);
}
