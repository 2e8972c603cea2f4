"use strict";
// What each panel shows of a document.

const isTroubled = (engine) =>
  engine.state !== "up" || (engine.queue_limit > 0 && engine.queued * 2 >= engine.queue_limit) || engine.breaker_open;

const engineTable = new Table("engine-table", "", [
  marked("engine", (one) => one.name, isTroubled),
  marked("state", (one) => one.state, (one) => one.state !== "up", "word"),
  plain("runs in", (one) => `${one.isolation || UNKNOWN}${one.basis === "measured" ? "" : `, ${one.basis}`}`, "word"),
  measured("busy", (one) => one.utilisation),
  plain("running / slots", (one) => `${one.running} / ${one.slots}`),
  marked("waiting / limit", (one) => `${one.queued} / ${one.queue_limit}`, (one) => one.queue_limit > 0 && one.queued * 2 >= one.queue_limit),
  plain("waiting by class", (one) => one.waiting.map((count, at) => (count ? `${one.classes[at]} ${count}` : "")).filter(Boolean).join(", ") || "none", "word"),
  plain("backlog", (one) => ms(one.backlog_ms)),
  plain("requests", (one) => perSecond(one.requests_per_s)),
  plain("batches", (one) => perSecond(one.batches_per_s)),
  plain("failover in", (one) => perSecond(one.failover_in_per_s)),
  marked("failed batches", (one) => number(one.failed_batches), (one) => one.failed_batches > 0),
  marked("restarts", (one) => number(one.restarts), (one) => one.restarts > 0),
  plain("memory", (one) => (one.memory_bytes === null ? "the server's" : bytes(one.memory_bytes))),
]);

const stageTable = new Table("stage-table", "What arrives at each stage, and what of its preferred engine's overflow goes to the backup.", [
  plain("stage", (one) => one.name),
  plain("placed", (one) => perSecond(one.placed_per_s)),
  plain("overflow", (one) => perSecond(one.overflow_per_s)),
  plain("sent to", (one) => one.failover_to || "nowhere", "word"),
  plain("share sent", (one) => share(one.failover_share)),
  plain("share set", (one) => share(one.failover_share_set)),
]);

const pairTable = new Table("pair-table", "", [
  plain("stage on engine", (one) => `${one.stage_name} on ${one.engine_name}`),
  plain("placed", (one) => perSecond(one.placed_per_s)),
  parted("split", (one) => [one.queue_ms, one.copy_ms, one.compute_ms]),
  plain("queue", (one) => ms(one.queue_ms)),
  plain("copy", (one) => ms(one.copy_ms)),
  plain("compute", (one) => ms(one.compute_ms)),
  marked("breaker", (one) => one.breaker || "none", (one) => one.breaker === "open" || one.breaker === "half-open", "word"),
  plain("failed of remembered calls", (one) => (one.breaker ? `${one.breaker_failures} of ${one.breaker_calls}` : UNKNOWN)),
  plain("changes", (one) => (one.breaker ? number(one.breaker_transitions) : UNKNOWN)),
  marked("takes more", (one) => (one.admits ? "yes" : "no"), (one) => !one.admits, "word"),
]);

const signalTable = new Table("rollout-table", "What each signal of the rollout says.", [
  plain("signal", (one) => one.name),
  marked("decision", (one) => one.decision, (one) => one.decision === "fail", "word"),
  plain("why", (one) => one.why, "wrap"),
  plain("figures", (one) => Object.entries(one.figures).map(([name, value]) => `${name} ${number(value)}`).join(", "), "wrap"),
]);

const OUTCOMES = ["completed", "failed", "rejected", "shed", "expired", "cancelled"];
const tenantTable = new Table("tenant-table", "Requests that ended, by tenant.", [
  plain("tenant", (one) => one.name),
  ...OUTCOMES.map((name) => plain(name, (one) => perSecond(one[`${name}_per_s`]))),
]);

const rateChart = new Chart("rate", [{ label: "arrived", key: "arrived_per_s" }, { label: "completed", key: "completed_per_s" }, { label: "not completed", key: "not_completed_per_s" }], "/s");
const latencyChart = new Chart("latency", [{ label: "P50", key: "p50_ms" }, { label: "P95", key: "p95_ms" }, { label: "P99", key: "p99_ms" }], " ms", true);
const insideChart = new Chart("inside", [{ label: "inside", key: "inside" }, { label: "waiting for an engine", key: "queued" }], "");
const waterChart = new Chart("waterline", [{ label: "asked for", key: "arrived_per_s" }, { label: "capacity at this split", key: "capacity_per_s" }], "/s");
const firstChart = new Chart("first", [{ label: "P50", key: "first_p50_ms" }, { label: "P95", key: "first_p95_ms" }, { label: "P99", key: "first_p99_ms" }], " ms", true);
const gapChart = new Chart("gap", [{ label: "P50", key: "gap_p50_ms" }, { label: "P95", key: "gap_p95_ms" }, { label: "P99", key: "gap_p99_ms" }], " ms", true);

let calling = 0; // how many things call for a look

function alarms(texts) {
  const list = find("alarms");
  calling = texts.length;
  const shown = texts.length ? texts.slice(0, 8) : ["Nothing calls for a look."];
  if (texts.length > 8) shown.push(`and ${texts.length - 8} more`);
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((text, at) => {
    if (!list.children[at]) list.append(make("li"));
    setText(list.children[at], text);
    list.children[at].classList.toggle("well", !texts.length);
  });
}

function showSummary(said, extra) {
  const ended = said.ended_per_s;
  const lost = OUTCOMES.slice(1).filter((name) => ended[name]).map((name) => `${name} ${number(ended[name])}`).join(", ");
  facts(find("facts"), [
    ["completed", perSecond(said.completed_per_s)],
    ["not completed, per second", lost || "none"],
    ["P50, last minute", ms(said.latency_ms.p50)],
    ["P95, last minute", ms(said.latency_ms.p95)],
    ["P99, last minute", ms(said.latency_ms.p99)],
    ["inside, of at most", `${said.inside} / ${said.requests_max}`],
    ["engines up", `${said.engines_up} of ${said.engines}`],
    ...extra,
  ]);
}

function showPipeline(said, points) {
  const pairs = rowsOf(said.pairs);
  const open = new Set();
  const alarming = [];
  for (const pair of pairs) {
    pair.stage_name = said.stages.name[pair.stage];
    pair.engine_name = said.engines.name[pair.engine];
    if (pair.breaker === "open" || pair.breaker === "half-open") {
      open.add(pair.engine);
      alarming.push(`The breaker of ${pair.stage_name} on ${pair.engine_name} is ${pair.breaker}.`);
    }
  }
  let engines = rowsOf(said.engines);
  engines.forEach((engine, at) => {
    engine.classes = said.classes;
    engine.breaker_open = open.has(at);
    if (engine.state !== "up") alarming.push(`Engine ${engine.name} is ${engine.state}${engine.last_end ? ` (${engine.last_end})` : ""}.`);
    else if (isTroubled(engine) && !engine.breaker_open) alarming.push(`Engine ${engine.name}: ${engine.queued} wait, of at most ${engine.queue_limit}.`);
  });
  const water = said.waterline;
  if (water.capacity_per_s !== null && water.offered_per_s > 0.9 * water.capacity_per_s) {
    alarming.push(`${perSecond(water.offered_per_s)} are asked for; at the present split the engines can do ${perSecond(water.capacity_per_s)}.`);
  }
  const sum = said.summary;
  showSummary(sum, [
    ["breakers open", sum.breakers ? `${sum.breakers_open} of ${sum.breakers}` : "none set"],
    ["overflow sent to a backup", sum.has_failover ? share(sum.failover_share) : "none set"],
    ["refused at the door", perSecond(sum.refused_at_front_per_s)],
    ["headroom", water.capacity_per_s === null ? "too idle to say" : share(Math.max(0, 1 - water.offered_per_s / water.capacity_per_s))],
  ]);
  alarms(alarming);
  if (find("troubled").checked) engines = engines.filter(isTroubled);
  engineTable.caption(`${engines.length} of ${said.summary.engines} engines; busy and rates over the last ${said.rates_over_s} s. "!" marks what calls for a look.`);
  engineTable.show(engines);
  stageTable.show(rowsOf(said.stages));
  pairTable.caption(`Mean times of one request over the last ${said.times_over_s} s.`);
  pairTable.show(pairs);
  waterChart.show(points);
  setText(find("water-text"), waterText(water));
  showRollout(said.rollout);
  setText(find("tenants-text"), said.tenants.length ? "" : "The pipeline names no tenants.");
  tenantTable.show(said.tenants);
}

function waterText(water) {
  const asked = `Asked for: ${perSecond(water.offered_per_s)}.`;
  if (water.capacity_per_s === null) return `${asked} There is too little load to tell what the engines could do.`;
  return `${asked} At the present split between engines ${water.limited_by} is full at ${perSecond(water.capacity_per_s)}; `
    + `spread evenly over all slots it would be ${perSecond(water.capacity_if_spread_per_s)}.`;
}

function showRollout(rollout) {
  if (!rollout || rollout.state === "none") {
    setText(find("rollout-text"), rollout ? "No rollout has been started." : "This server has no state file, so there are no rollouts.");
    signalTable.show([]);
    return;
  }
  const step = rollout.state === "running" ? `, step ${rollout.step}, dwelt ${number(rollout.dwelt_s)} s of ${number(rollout.dwell_s)} s` : "";
  setText(
    find("rollout-text"),
    `${rollout.candidate || "Canary"}: ${rollout.state}${step}; the new version gets ${share(rollout.weight)}. ${rollout.decision}: ${rollout.why}.`,
  );
  signalTable.show(Object.entries(rollout.analysis).map(([name, one]) => ({ name, ...one })));
}

// A language model's server.

const languageTable = new Table("language-engine-table", "KV is counted in blocks.", [
  marked("engine", (one) => one.name, (one) => one.state !== "up"),
  marked("state", (one) => one.state, (one) => one.state !== "up", "word"),
  plain("does", (one) => one.roles, "word"),
  measured("KV used", (one) => one.kv_share),
  plain("blocks", (one) => `${number(one.blocks_used)} / ${number(one.blocks)}`),
  plain("sequences / seats", (one) => `${one.seats_used} / ${one.seats}`),
  plain("waiting / limit", (one) => `${one.waiting} / ${one.queue_limit}`),
  plain("prompt tokens to compute", (one) => number(one.backlog_tokens)),
  plain("steps", (one) => perSecond(one.steps_per_s)),
  plain("prompt tokens", (one) => perSecond(one.prefill_tokens_per_s)),
  plain("new tokens", (one) => perSecond(one.decode_tokens_per_s)),
  plain("pace, of what was measured", (one) => share(one.pace)),
  marked("preemptions", (one) => number(one.preemptions), (one) => one.preemptions > 0),
  marked("restarts", (one) => number(one.restarts), (one) => one.restarts > 0),
]);

const routeTable = new Table("route-table", "Why prompts were computed where they were, since the server started.", [
  plain("route", (one) => one.name.replaceAll("_", " ")),
  plain("prompts", (one) => number(one.prompts)),
]);

function showLanguage(said, points) {
  const sum = said.summary;
  showSummary(sum, [
    ["first token, P95", ms(sum.first_ms.p95)],
    ["between tokens, P95", ms(sum.gap_ms.p95)],
    ["KV moves, failed", `${number(sum.handovers)}, ${number(sum.handovers_failed)}`],
    ["prompts computed again", number(sum.fallbacks)],
  ]);
  const engines = rowsOf(said.engines);
  alarms(engines.filter((one) => one.state !== "up").map((one) => `Engine ${one.name} is ${one.state}.`));
  languageTable.show(engines);
  routeTable.show(said.routes);
  firstChart.show(points);
  gapChart.show(points);
}
