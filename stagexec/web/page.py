"""The page at /stagexec/: the newest runs with their stages, and one run's visits. It is one file."""

from __future__ import annotations

import base64
import hashlib
import json

from stagexec.stages import STAGES
from stagexec.views.html import COLOURS

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:1100px;padding:0 1rem;color:#222}
h1{font-size:1.3rem}table{border-collapse:collapse;width:100%}
td,th{padding:.2rem .6rem .2rem 0;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}tr.run{cursor:pointer}tr.run:hover{background:#f3f3f3}
.bar{display:flex;height:14px;width:100%;background:#eee}.bar i{display:block;height:100%}
.bad{color:#b00020}.dim{color:#666}#key span{margin-right:1em;white-space:nowrap}
#key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
"""

SCRIPT = """
"use strict";
const COLOURS = /*COLOURS*/;
const base = location.pathname.replace(/\\/+$/, "");
function el(name, text, kind) {
  const e = document.createElement(name);
  if (text !== undefined && text !== null) e.textContent = text;
  if (kind) e.className = kind;
  return e;
}
function human(ns) {
  if (ns === null || ns === undefined) return "-";
  if (ns < 1e6) return (ns / 1e3).toFixed(0) + " \\u00b5s";
  if (ns < 1e9) return (ns / 1e6).toFixed(1) + " ms";
  if (ns < 6e10) return (ns / 1e9).toFixed(2) + " s";
  const s = Math.floor(ns / 1e9);
  if (s < 3600) return Math.floor(s / 60) + " min " + s % 60 + " s";
  return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
}
function named(of) {
  if (of === null || of === undefined) return "";
  return "named " + Math.round(100 * (of > 0 && of < 1 ? Math.min(of, 0.99) : of)) + "%";
}
function bar(stages, total) {
  const b = el("div", null, "bar");
  for (const [stage, ns] of Object.entries(stages)) {
    const i = el("i");
    i.style.width = (total ? 100 * ns / total : 0) + "%";
    i.style.background = COLOURS[stage] || "#999";
    i.title = stage + " " + human(ns);
    b.append(i);
  }
  return b;
}
function row(cells) {
  const r = el("tr");
  for (const c of cells) {
    const d = el("td");
    if (c instanceof Node) d.append(c); else d.textContent = c === null || c === undefined ? "-" : c;
    r.append(d);
  }
  return r;
}
async function get(path) {
  const answer = await fetch(base + path);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}
async function show(id) {
  const run = await get("/runs/" + encodeURIComponent(id));
  const box = document.getElementById("run");
  box.replaceChildren(el("h2", "run " + run.run_id), bar(run.stages, run.total_ns));
  const stages = el("table");
  for (const [stage, ns] of Object.entries(run.stages)) {
    stages.append(row([stage, human(ns)]));
    for (const [part, of] of Object.entries((run.parts || {})[stage] || {})) {
      const n = stage === "sampling" && part === "step" ? run.steps : null;
      const each = !n ? "" : n.middle_ns === null ? ": 1 \\u00d7 " + human(n.first_ns) :
        ": " + n.count + " \\u00d7 " + human(n.middle_ns) + ", first " + human(n.first_ns);
      const r = row(["\\u2003" + part + each, human(of)]);
      r.className = "dim";
      stages.append(r);
    }
  }
  const why = run.startup_evidence ? run.startup_class + ": " + run.startup_evidence.reason : "";
  const known = run.named_share === null ? "" : named(run.named_share) + " of this run";
  box.append(el("p", why), el("p", known), stages);
  const visits = el("table");
  const longest = [...run.visits].sort((a, b) => b.self_ns - a.self_ns).slice(0, 100);
  for (const v of longest) {
    visits.append(row([v.node_id, v.class_type, v.kind, v.stage, human(v.self_ns)]));
  }
  box.append(el("h2", "visits, longest first"), visits);
  box.scrollIntoView();
}
async function main() {
  const worker = await get("/worker"), dead = worker.up === false;
  if (dead) {
    const why = worker.exception_type + (worker.at ? " at " + worker.at : "");
    document.getElementById("worker").textContent =
      "The worker is dead (" + why + "): no prompt is executed until ComfyUI is restarted.";
  }
  const runs = (await get("/runs?limit=100")).reverse();
  const table = document.getElementById("runs");
  for (const run of runs) {
    const waits = !run.outcome && Object.keys(run.stages).join() === "queue_wait";
    const now = waits ? (dead ? "waits for a worker that is dead" : "waiting") : "under way";
    const where = [run.outcome || now, run.cause, run.error_stage].filter(x => x).join(", ");
    const r = row([run.run_id.slice(0, 8), (run.accepted_wall || "").slice(0, 19).replace("T", " "), where,
      run.startup_class, human(run.total_ns), named(run.named_share),
      bar(run.stages, run.total_ns)]);
    r.className = "run";
    r.addEventListener("click", () => show(run.run_id).catch(complain));
    table.append(r);
  }
  const key = document.getElementById("key");
  for (const [stage, colour] of Object.entries(COLOURS)) {
    const s = el("span"), i = el("i");
    i.style.background = colour;
    s.append(i, stage);
    key.append(s);
  }
  document.getElementById("count").textContent = runs.length + " newest runs";
}
function complain(error) {
  document.getElementById("count").textContent = error.message;
}
main().catch(complain);
""".replace("/*COLOURS*/", json.dumps({stage: COLOURS[stage] for stage in STAGES}))


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Only this page's own script runs, and it may ask only this server."""

HTML = (
    "<!doctype html><html lang=en><head><meta charset=utf-8><title>stagexec</title>"
    f"<style>{STYLE}</style></head><body><h1>stagexec</h1><p id=worker class=bad></p>"
    "<p id=count class=dim>loading</p><p id=key></p>"
    "<table id=runs></table><div id=run></div>"
    f"<script>{SCRIPT}</script></body></html>"
)
