"use strict";
// Asks the server once a second and shows what it says. The token stays in this variable.

let token = "";
let seen = 0;
let shown = null; // generation and name of what is shown
let points = null;
let timer = 0;
let isPaused = false;
let isAsking = false;
let last = null;

const EVERY_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 5000 : 1000;
const TIMEOUT_MS = 10000;
const shade = matchMedia("(prefers-color-scheme: dark)");

function status(text, isBad) {
  setText(find("status"), text);
  find("status").classList.toggle("bad", Boolean(isBad));
}

async function fetched(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const stop = AbortSignal.timeout(TIMEOUT_MS);
  return fetch(new URL(path, location.href), { headers, signal: stop, cache: "no-store", credentials: "omit" });
}

// For a single answer that somebody waits for: what is refused is said where the answer would be.
async function ask(path, place) {
  try {
    const reply = await fetched(path);
    const said = await reply.json();
    if (reply.ok) return said;
    place.replaceChildren(reply.status === 403 && token ? "The token lacks the scope admin, which single requests need." : said.error);
  } catch (error) {
    place.replaceChildren(`No answer: ${error.message}`);
  }
  return null;
}

async function look() {
  clearTimeout(timer);
  if (isPaused || document.hidden || isAsking) return;
  isAsking = true;
  let next = EVERY_MS;
  let said = null;
  try {
    const reply = await fetched(`console/data?since=${seen}`);
    if (reply.status === 401 || reply.status === 403) {
      await refused(reply);
      return;
    }
    said = await reply.json();
    if (!reply.ok) {
      status(`Waiting: ${said.error}`, true);
      next = 1000 * Math.max(2, Number(reply.headers.get("Retry-After")) || 0);
      said = null;
    }
  } catch (error) {
    status(`No answer from the server since ${last ? clock(last.at_s) : "this page was opened"} (${error.name}). Figures below are old.`, true);
    next = 3000;
  } finally {
    isAsking = false;
    clearTimeout(timer);
    if (!find("login").hidden) next = 0;
    if (next) timer = setTimeout(look, next);
  }
  if (said) update(said);
}

async function refused(reply) {
  const said = await reply.json();
  find("login").hidden = false;
  status(token ? `The token was refused: ${said.error}.` : `Closed: ${said.error}.`, true);
  token = "";
  find("token").focus();
}

function update(said) {
  performance.mark("update-begin");
  find("login").hidden = true;
  const same = `${said.kind} ${said.name}`;
  const isFresh = said.number < seen || same !== shown || seen === 0;
  points = append(points, said.points, isFresh);
  seen = said.number;
  if (same !== shown) {
    shown = same;
    setText(find("name"), said.name);
    document.title = `${said.name} - loadslice console`;
    for (const part of document.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== said.kind;
  }
  last = said;
  draw();
  status(`Live. Generation ${said.generation}${said.version ? `, version ${said.version}` : ""}${said.draining_generations ? ", the one before it still ends requests" : ""}. ${calling === 0 ? "Nothing calls" : calling === 1 ? "One thing calls" : `${calling} things call`} for a look.`);
  performance.mark("update-end");
  performance.clearMeasures("update");
  performance.measure("update", "update-begin", "update-end");
  document.documentElement.dataset.updates = String(1 + Number(document.documentElement.dataset.updates || 0));
}

function draw() {
  if (!last) return;
  rateChart.show(points);
  latencyChart.show(points);
  insideChart.show(points);
  if (last.kind === "pipeline") showPipeline(last, points);
  else showLanguage(last, points);
  const pace = last.dilation === 1 ? "" : ` One second here is ${number(1 / last.dilation)} s on the emulated devices.`;
  setText(find("basis"), `Figures are ${last.basis}; rates over ${last.rates_over_s} s, times over ${last.times_over_s} s.${pace}`);
}

function applyShade() {
  const chosen = find("theme").value;
  document.documentElement.dataset.shade = chosen === "auto" ? (shade.matches ? "dark" : "light") : chosen;
  for (const chart of charts) chart.forget();
  draw();
}

find("theme").addEventListener("change", () => {
  try {
    localStorage.setItem("loadslice-shade", find("theme").value);
  } catch { /* storage is off: the choice lasts as long as the page */ }
  applyShade();
});
shade.addEventListener("change", applyShade);
find("troubled").addEventListener("change", draw);
find("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  find("pause").setAttribute("aria-pressed", String(isPaused));
  if (isPaused) status("Paused.");
  else look();
});
find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = find("token").value.trim();
  find("token").value = "";
  find("login").hidden = true;
  look();
});
document.addEventListener("visibilitychange", look);

try {
  const kept = localStorage.getItem("loadslice-shade");
  if (["light", "dark"].includes(kept)) find("theme").value = kept;
} catch { /* as above */ }
applyShade();
look();
