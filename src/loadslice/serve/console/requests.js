"use strict";
// One request's story, and lists to choose from.

const requestTable = new Table("request-table", "", [
  {
    title: "request", cell: (row, node) => {
      if (!node.firstChild) {
        const button = make("button");
        button.type = "button";
        button.addEventListener("click", () => tell(button.dataset.name));
        node.append(button);
      }
      const name = row.id || String(row.tag);
      setText(node.firstChild, name.length > 40 ? `${name.slice(0, 39)}…` : name);
      node.firstChild.dataset.name = name;
    },
  },
  marked("outcome", (one) => one.outcome, (one) => one.outcome !== "completed", "word"),
  plain("why", (one) => (one.reason === "none" ? "" : one.reason.replaceAll("_", " ")), "word"),
  plain("took", (one) => ms(one.took_ms)),
  plain("class", (one) => one.class || UNKNOWN, "word"),
  plain("tenant", (one) => one.tenant || UNKNOWN, "word"),
  plain("ended", (one) => clock(one.ended_at_s)),
]);

async function list(notable) {
  const found = await ask(`console/requests?notable=${notable ? 1 : 0}`, find("story"));
  if (!found) return;
  const what = notable ? "did not complete, or took longer than all but a hundredth of the last minute's" : "were kept";
  requestTable.caption(`The last ${found.requests.length} requests that ${what}.`);
  requestTable.show(found.requests);
  find("story").replaceChildren(found.requests.length ? "" : "None so far.");
}

async function tell(name) {
  const story = find("story");
  const told = await ask(`console/requests?id=${encodeURIComponent(name)}`, story);
  if (!told) return;
  const title = make("h3", `Request ${told.id || told.tag}`);
  const list = make("dl");
  facts(list, told.stages ? [
    ["outcome", told.reason === "none" ? told.outcome : `${told.outcome}: ${told.reason.replaceAll("_", " ")}`],
    ["took", ms(told.took_ms)],
    ["ended", clock(told.ended_at_s)],
    ["at stage", told.ended_at_stage || UNKNOWN],
    ["class", told.class],
    ["tenant", told.tenant || UNKNOWN],
    ["source", told.source || UNKNOWN],
    ["version", told.version || UNKNOWN],
    ["attempt", String(told.attempt)],
    ["read and parsed in", ms(told.parse_ms)],
    ["reply accepted in", ms(told.reply_ms)],
    ["told to come back after", ms(told.hint_ms)],
  ] : Object.entries(told).filter(([key]) => key !== "id").map(([key, value]) => [
    key.replaceAll("_", " "), key === "ended_at_s" ? clock(value) : typeof value === "number" ? number(value) : value || UNKNOWN,
  ]));
  const parts = make("ol");
  for (const one of told.stages || []) {
    const rows = one.batch_rows === null ? "" : ` in a batch of ${one.batch_rows}`;
    parts.append(make("li", `${one.stage} on ${one.engine} (${one.placed.replaceAll("_", " ")}): queue ${ms(one.queue_ms)}, copy ${ms(one.copy_ms)}, compute ${ms(one.compute_ms)}${rows}`));
  }
  story.replaceChildren(title, list, parts);
}

find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = find("request-id").value.trim();
  if (name) tell(name);
});
find("list-notable").addEventListener("click", () => list(true));
find("list-all").addEventListener("click", () => list(false));
