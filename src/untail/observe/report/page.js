// Draws the pictures of a report from the data in the page. What a model or a user wrote reaches the document as
// textContent, or escaped where plotly reads markup; only the chosen step is ever unpacked.
"use strict";
(async () => {
  const KINDS = {
    end: "came to its end", length: "used up its budget", segment: "left its slot, goes on later",
    defer: "deferred to the next step", stop: "stopped or pruned", cancel: "cancelled", audit: "let run on for the audit",
    fail: "failed", wait: "waits for its tool",
  };
  const PHASES = {
    rollout_s: "rollout", score_s: "scoring", tool_s: "tools", logprob_s: "log-probs", update_s: "update", sync_s: "sync",
    idle_s: "idle",
  };
  const CONFIG = { displayModeBar: false, responsive: true };
  const $ = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const thousands = (n) => n.toLocaleString("en-US");
  const seconds = (s) => (s >= 100 ? thousands(Math.round(s)) : s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
  const narrow = () => window.innerWidth <= 640;
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  const page = await unpacked("data");
  const runs = page.runs;
  const several = runs.length > 1;
  let shown = []; // the chosen step's picture of each run, or undefined
  let turn = 0; // of the selectors: an answer that comes late is not drawn

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(plain).text());
  }

  // ---- what all pictures share ----------------------------------------------------------------------------------

  function layout(height, more) {
    const axis = {
      color: colour("muted"), gridcolor: colour("rule"), linecolor: colour("faint"), zeroline: false, ticks: "outside",
      ticklen: 4, tickcolor: colour("faint"), title: { standoff: 8, font: { size: 12.5 } }, fixedrange: narrow(),
    };
    const merged = (own) => ({ ...axis, ...own, title: { ...axis.title, ...own.title } });
    return {
      ...more, height, autosize: true, showlegend: false, separators: ".,", dragmode: narrow() ? false : "zoom",
      margin: { l: 54, r: 12, t: 10, b: 42, ...more.margin }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: 'system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif', size: 12, color: colour("ink") },
      hoverlabel: {
        bgcolor: colour("paper"), bordercolor: colour("faint"), align: "left", namelength: 0, font: { color: colour("ink"), size: 12 },
      },
      xaxis: merged(more.xaxis), yaxis: merged(more.yaxis),
    };
  }

  function wrapped(text, width) {
    const lines = [];
    for (const line of text.split("\n")) {
      for (let rest = line; rest; rest = rest.slice(width)) lines.push(escaped(rest.slice(0, width)));
    }
    return lines.slice(0, 5).join("<br>");
  }

  function about(picture, life, extra) {
    const { lives } = picture, width = narrow() ? 34 : 60;
    const reward = lives.reward[life], use = picture.uses[lives.use[life]];
    return [
      `<b>${escaped(lives.id[life])}</b>  ${thousands(lives.tokens[life])} tokens`, ...extra,
      wrapped(picture.whys[lives.why[life]], width),
      `reward ${reward === null ? "none" : reward}${use ? ", " + escaped(use) : ""}`,
      lives.parent[life] >= 0 ? `forked from ${escaped(lives.id[lives.parent[life]])} at ${thousands(lives.at[life])}` : "",
      wrapped(picture.groups.prompt[lives.group[life]], width),
      lives.text[life] ? "<i>" + wrapped(lives.text[life], width) + "</i>" : "",
    ].filter(Boolean).join("<br>");
  }

  function legend(id, entries) {
    $(id).replaceChildren(...entries.map(([name, text, mark]) => {
      const item = document.createElement("li"), swatch = document.createElement("i");
      swatch.style.background = colour(name);
      if (mark) swatch.className = mark;
      item.append(swatch, text);
      return item;
    }));
  }

  // A box per run, made once: plotly redraws into it.
  function boxes(id) {
    const place = $(id);
    if (!place.children.length) {
      place.append(...runs.map((run) => {
        const box = document.createElement("div"), head = document.createElement("h3"), plot = document.createElement("div");
        head.append(several ? run.label + " " : "", document.createElement("small"));
        box.append(head, plot);
        return box;
      }));
    }
    return [...place.children].map((box) => ({ note: box.querySelector("small"), plot: box.lastElementChild }));
  }

  function draw(box, traces, shape, note) {
    box.note.textContent = note;
    return Plotly.react(box.plot, traces, shape, CONFIG);
  }

  // ---- the timeline ---------------------------------------------------------------------------------------------

  // Slots from the top down, engine by engine, then waits, which hold no slot, in as few rows as they fit.
  function rowsOf(picture) {
    const { spans } = picture, held = spans.slot.map((_, i) => i).filter((i) => spans.slot[i] >= 0), most = [];
    for (const i of held) most[spans.engine[i]] = Math.max(most[spans.engine[i]] ?? 0, spans.slot[i] + 1);
    const first = [];
    let rows = 0;
    for (let engine = 0; engine < most.length; engine++) { first[engine] = rows; rows += most[engine] ?? 0; }
    const row = [];
    for (const i of held) row[i] = first[spans.engine[i]] + spans.slot[i];
    const waits = spans.slot.map((_, i) => i).filter((i) => spans.slot[i] < 0).sort((a, b) => spans.begin[a] - spans.begin[b]);
    const busyUntil = [], below = waits.length ? rows + Math.max(1, Math.round(rows / 40)) : rows;
    for (const i of waits) {
      let lane = busyUntil.findIndex((end) => end <= spans.begin[i]);
      if (lane < 0) lane = busyUntil.length;
      busyUntil[lane] = spans.end[i];
      row[i] = below + lane;
    }
    return { row, first, slots: rows, below, all: below + busyUntil.length };
  }

  function timeline() {
    const places = shown.map((picture) => picture && rowsOf(picture));
    const rows = Math.max(1, ...places.map((place) => place?.all ?? 0));
    const until = Math.max(...shown.map((picture) => picture?.done ?? 0));
    const tall = Math.min(rows * 18, Math.max(rows * 2, several ? 300 : 460)), seen = new Set();
    boxes("timeline").forEach((box, r) => {
      const picture = shown[r], place = places[r];
      if (!picture) return draw(box, [], layout(60, { xaxis: { visible: false }, yaxis: { visible: false } }), "has no such step");
      const { spans } = picture;
      const traces = picture.kinds.map((kind, k) => {
        const mine = spans.kind.map((_, i) => i).filter((i) => spans.kind[i] === k && spans.end[i] > spans.begin[i]);
        if (mine.length) seen.add(kind);
        return {
          type: "bar", orientation: "h", name: KINDS[kind], width: 0.86, hoverinfo: "text", textposition: "none",
          y: mine.map((i) => place.row[i]), base: mine.map((i) => spans.begin[i]), x: mine.map((i) => spans.end[i] - spans.begin[i]),
          marker: { color: colour(kind), line: { width: rows > 60 ? 0 : 1, color: colour("paper") } },
          hovertext: mine.map((i) => about(picture, spans.life[i], [
            `${KINDS[kind]}${kind === "wait" ? "" : `, slot ${spans.slot[i]}${runs[r].engines > 1 ? " of engine " + spans.engine[i] : ""}`}, ` +
            `${seconds(spans.begin[i])} to ${seconds(spans.end[i])}`])),
        };
      }).filter((trace) => trace.y.length);
      traces.push(marksOf(picture, place, seen));
      draw(box, traces, layout(tall + 56, timelineAxes(r, picture, place, rows, until)),
        `${thousands(place.slots)} of ${thousands(runs[r].concurrency)} slots used, step of ${seconds(picture.done)}`);
    });
    legend("kinds", [
      ...Object.entries(KINDS).filter(([kind]) => seen.has(kind)), ...(seen.has("fork") ? [["ink", "fork", "mark"]] : []),
    ]);
  }

  // A fork where the child first gets a slot (one that never gets any has no mark), a failure where it happened.
  function marksOf(picture, place, seen) {
    const { spans, forks } = picture, marks = [];
    const mark = (i, x, symbol) => marks.push({ x, y: place.row[i], symbol, text: about(picture, spans.life[i], []) });
    for (const life of forks.life) {
      const i = spans.life.findIndex((other, i) => other === life && spans.slot[i] >= 0);
      if (i >= 0) { mark(i, spans.begin[i], "diamond"); seen.add("fork"); }
    }
    spans.kind.forEach((kind, i) => { if (picture.kinds[kind] === "fail") mark(i, spans.end[i], "x"); });
    return {
      type: "scatter", mode: "markers", hoverinfo: "text", cliponaxis: false, x: marks.map((m) => m.x), y: marks.map((m) => m.y),
      hovertext: marks.map((m) => m.text),
      marker: { symbol: marks.map((m) => m.symbol), size: 7, color: colour("ink"), line: { width: 1, color: colour("paper") } },
    };
  }

  function timelineAxes(r, picture, place, rows, until) {
    const step = page.chosen, index = runs[r].steps.indexOf(step), tail = picture.rolled_out - runs[r].tail_s[index];
    const band = (x0, x1, fill) => ({
      type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: colour(fill),
    });
    const engines = runs[r].engines > 1, ticks = engines
      ? place.first.map((first, engine) => [first, `engine ${engine}`])
      : everyNice(place.slots, rows).map((slot) => [slot, thousands(slot)]);
    if (place.all > place.slots) ticks.push([place.below, "tools"]);
    const words = [[tail, picture.rolled_out, "tail"], [picture.rolled_out, picture.done, "update"]];
    return {
      barmode: "overlay", bargap: 0, hovermode: "closest", margin: { l: engines ? 70 : 54, t: 18 },
      xaxis: { title: { text: "seconds since the step began" }, range: [0, until * 1.005], showgrid: false, tickformat: ",~r" },
      yaxis: {
        title: { text: engines ? "" : "slot" }, range: [rows - 0.4, -0.6], showgrid: false,
        tickvals: ticks.map((tick) => tick[0]), ticktext: ticks.map((tick) => tick[1]),
      },
      shapes: [band(tail, picture.rolled_out, "tint"), band(picture.rolled_out, picture.done, "tint2")],
      annotations: words.filter(([from, to]) => to - from > until * 0.06).map(([from, , text]) => ({
        x: from, y: 1, xref: "x", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, text, font: { size: 11, color: colour("muted") },
      })),
    };
  }

  // About five slots at round distances, the last of them well above whatever comes below.
  function everyNice(slots, rows) {
    const distance = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((d) => slots / d <= 7) ?? 10000;
    return [...Array(Math.ceil(slots / distance))].map((_, i) => i * distance).filter((slot) => !slot || slots - slot > rows / 14);
  }

  // ---- slots in use ---------------------------------------------------------------------------------------------

  function occupancyOf(picture) {
    const { spans } = picture, changes = [];
    spans.slot.forEach((slot, i) => { if (slot >= 0) changes.push([spans.begin[i], 1], [spans.end[i], -1]); });
    changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const x = [0], y = [0];
    let busy = 0;
    for (const [t, change] of changes) {
      busy += change;
      if (t === x[x.length - 1]) y[y.length - 1] = busy; else { x.push(t); y.push(busy); }
    }
    x.push(picture.rolled_out); y.push(busy);
    return { x, y };
  }

  function occupancy() {
    const curves = shown.map((picture) => picture && occupancyOf(picture));
    const until = Math.max(...shown.map((picture) => picture?.done ?? 0));
    const most = Math.max(...runs.map((run) => run.concurrency));
    boxes("occupancy").forEach((box, r) => {
      const line = (curve, own) => ({
        type: "scatter", mode: "lines", ...curve, line: { shape: "hv", width: own ? 1.6 : 1, color: colour(own ? "end" : "faint") },
        hoverinfo: own ? "x+y" : "skip", fill: own ? "tozeroy" : "none", fillcolor: own ? alpha(colour("end"), 0.18) : undefined,
        hovertemplate: own ? "%{y:,d} slots at %{x:,.2f} s<extra></extra>" : undefined,
      });
      const traces = curves.flatMap((curve, other) => (curve && other !== r ? [line(curve, false)] : []));
      if (curves[r]) traces.push(line(curves[r], true));
      draw(box, traces, layout(several ? 220 : 260, {
        hovermode: "x",
        xaxis: { title: { text: "seconds since the step began" }, range: [0, until * 1.005], showgrid: false, tickformat: ",~r" },
        yaxis: { title: { text: "slots in use" }, range: [0, most * 1.06], nticks: 5, tickformat: ",d" },
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: runs[r].concurrency, y1: runs[r].concurrency, line: { dash: "dash", width: 1, color: colour("muted") } }],
      }), curves[r] ? "" : "has no such step");
    });
  }

  function alpha(hex, share) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r}, ${g}, ${b}, ${share})`;
  }

  // ---- lengths --------------------------------------------------------------------------------------------------

  function lengths() {
    const longest = Math.max(...runs.flatMap((run) => run.lengths.tokens), 1);
    const least = Math.min(...runs.map((run) => (run.lengths.n ? 1 / run.lengths.n : 1)), 0.5);
    boxes("lengths").forEach((box, r) => {
      const line = ({ tokens, share }, own) => ({
        type: "scatter", mode: "lines", x: tokens, y: share, line: { width: own ? 1.8 : 1, color: colour(own ? "end" : "faint") },
        hoverinfo: own ? "x+y" : "skip", hovertemplate: own ? "%{y:.2~%} have at least %{x:,d} tokens<extra></extra>" : undefined,
      });
      const own = runs[r].lengths;
      const marks = {
        type: "scatter", mode: "markers+text", x: own.mark, y: own.mark_share, hoverinfo: "skip", cliponaxis: false,
        textposition: own.mark.map((mark) => (mark > longest * 0.75 ? "bottom left" : "top right")), text: own.percent.map((percent, i) => `p${percent}  ${thousands(own.mark[i])}`), textfont: { size: 12 },
        marker: { size: 7, color: colour("ink") },
      };
      const traces = runs.flatMap((run, other) => (other !== r ? [line(run.lengths, false)] : []));
      draw(box, [...traces, line(own, true), marks], layout(several ? 260 : 320, {
        hovermode: "closest", margin: { l: 62 },
        xaxis: { title: { text: "tokens" }, range: [0, longest * 1.12], showgrid: false, tickformat: ",d", nticks: 6 },
        yaxis: { type: "log", title: { text: "share at least as long" }, range: [Math.log10(least) - 0.1, 0.12], dtick: 1, tickformat: ".3~%" },
      }), `${thousands(own.n)} responses`);
    });
  }

  // ---- phases ---------------------------------------------------------------------------------------------------

  function phases() {
    const names = Object.keys(PHASES).filter((name) => name in runs[0].phases);
    const total = (run, i) => names.reduce((sum, name) => sum + Math.max(0, run.phases[name][i]), 0);
    const most = Math.max(...runs.flatMap((run) => run.steps.map((_, i) => total(run, i))));
    const last = Math.max(...runs.flatMap((run) => run.steps)), first = Math.min(...runs.flatMap((run) => run.steps));
    boxes("phases").forEach((box, r) => {
      const run = runs[r];
      const bars = names.map((name) => ({
        type: "bar", x: run.steps, y: run.phases[name], marker: { color: colour(name), line: { width: 0 } }, hoverinfo: "text", textposition: "none",
        hovertext: run.steps.map((step, i) => `step ${step}: ${PHASES[name]} ${seconds(run.phases[name][i])} of ${seconds(total(run, i))}`),
      }));
      const tail = {
        type: "scatter", mode: run.steps.length > 120 ? "lines" : "markers", x: run.steps, y: run.tail_s, hoverinfo: "text",
        hovertext: run.steps.map((step, i) => `step ${step}: tail ${seconds(run.tail_s[i])}`), line: { width: 1 },
        marker: { size: last - first < 40 ? 8 : 5, color: colour("ink"), line: { width: 1, color: colour("paper") } },
      };
      draw(box, [...bars, tail], layout(several ? 240 : 300, {
        barmode: "stack", bargap: last - first < 12 ? 0.5 : 0.18, hovermode: "closest",
        xaxis: { title: { text: "step" }, range: [first - 0.7, last + 0.7], showgrid: false, tickformat: ",d", ...(last - first < 8 ? { dtick: 1 } : { nticks: 8 }) },
        yaxis: { title: { text: "seconds" }, range: [0, most * 1.04], tickformat: ",~r", nticks: 5 },
      }), "");
    });
    legend("phase-names", [...names.map((name) => [name, PHASES[name]]), ["ink", "tail", "dot"]]);
  }

  // ---- the tree -------------------------------------------------------------------------------------------------

  function membersOf(picture, group) {
    const { lives } = picture, mine = lives.id.map((_, i) => i).filter((i) => lives.group[i] === group), ordered = [];
    const visit = (life) => {
      ordered.push(life);
      mine.filter((child) => lives.parent[child] === life).sort((a, b) => lives.at[b] - lives.at[a]).forEach(visit);
    };
    mine.filter((life) => !mine.includes(lives.parent[life])).forEach(visit);
    return ordered;
  }

  function tree() {
    const picture = shown[Number($("run").value)], group = Number($("group").value);
    if (!picture || !picture.groups.name.length) {
      $("prompt").textContent = "";
      return Plotly.react($("tree"), [], layout(60, { xaxis: { visible: false }, yaxis: { visible: false } }), CONFIG);
    }
    const { lives } = picture, members = membersOf(picture, group), row = new Map(members.map((life, i) => [life, i]));
    const high = Math.min(22, Math.max(4, 1200 / members.length)); // a large family has low rows
    const last = Math.max(1, ...members.map((life) => lives.tokens[life]));
    $("prompt").textContent = picture.groups.prompt[group];
    const bars = {
      type: "bar", orientation: "h", width: 0.42, hoverinfo: "text", textposition: "none", y: members.map((_, i) => i),
      base: members.map((life) => lives.at[life]), x: members.map((life) => lives.tokens[life] - lives.at[life]),
      marker: { color: members.map((life) => colour(picture.kinds[lives.kind[life]])), line: { width: 0 } },
      hovertext: members.map((life) => about(picture, life, [KINDS[picture.kinds[lives.kind[life]]]])),
    };
    const scored = members.filter((life) => lives.reward[life] !== null);
    const ends = {
      type: "scatter", mode: "markers", hoverinfo: "skip", cliponaxis: false, x: scored.map((life) => lives.tokens[life]), y: scored.map((life) => row.get(life)),
      marker: {
        size: Math.min(9, high), symbol: "circle", line: { width: 1.6, color: colour("ink") },
        color: scored.map((life) => colour(lives.reward[life] > 0 ? "ink" : "paper")),
      },
    };
    const forks = members.filter((life) => row.has(lives.parent[life]));
    const links = forks.map((life) => ({
      type: "line", layer: "below", x0: lives.at[life], x1: lives.at[life], y0: row.get(lives.parent[life]), y1: row.get(life), line: { width: 1.4, color: colour("muted") },
    }));
    Plotly.react($("tree"), [bars, ends], layout(members.length * high + 60, {
      barmode: "overlay", hovermode: "closest", shapes: links, margin: { l: 44, r: 24 },
      xaxis: { title: { text: "response tokens" }, range: [0, last * 1.02], tickformat: ",d", nticks: 8 },
      yaxis: {
        range: [members.length - 0.4, -0.6], showgrid: false, tickvals: high < 12 ? [] : members.map((_, i) => i), title: { text: "" },
        ticktext: members.map((life) => escaped(lives.id[life].slice(lives.id[life].lastIndexOf("/") + 1).slice(0, 12))),
      },
    }), CONFIG);
  }

  function mostForked() {
    const forks = shown.map((picture) => picture?.forks.life.length ?? 0);
    return forks.indexOf(Math.max(...forks));
  }

  // Those with forks first, then those whose lengths differ most.
  function groups() {
    const picture = shown[Number($("run").value)];
    if (!picture) return $("group").replaceChildren();
    const listed = picture.groups.name.map((name, group) => {
      const members = membersOf(picture, group), tokens = members.map((life) => picture.lives.tokens[life]);
      const forks = members.filter((life) => picture.lives.parent[life] >= 0).length;
      return { name, group, size: members.length, forks, longest: Math.max(...tokens), spread: Math.max(...tokens) - Math.min(...tokens) };
    });
    listed.sort((a, b) => b.forks - a.forks || b.spread - a.spread || a.group - b.group);
    $("group").replaceChildren(...listed.map((one) => new Option(
      `${one.name}: ${one.size} members${one.forks ? `, ${one.forks} forked` : ""}, up to ${thousands(one.longest)} tokens`, one.group)));
  }

  // ---- selectors ------------------------------------------------------------------------------------------------

  async function choose(step) {
    const mine = ++turn;
    const pictures = await Promise.all(runs.map((_, r) => ($(`picture-${step}-${r}`) ? unpacked(`picture-${step}-${r}`) : undefined)));
    if (mine !== turn) return;
    shown = pictures;
    page.chosen = step;
    const at = page.steps.findIndex((one) => one.step === step);
    $("earlier").disabled = at === 0;
    $("later").disabled = at === page.steps.length - 1;
    timeline();
    occupancy();
    if (mine === 1) $("run").value = mostForked();
    groups();
    tree();
    document.documentElement.dataset.step = step; // what is drawn now
  }

  function move(by) {
    const select = $("step");
    select.selectedIndex = Math.min(Math.max(select.selectedIndex + by, 0), select.options.length - 1);
    choose(Number(select.value));
  }

  function everything() {
    lengths();
    phases();
    return choose(Number($("step").value));
  }

  $("step").append(...page.steps.map(({ step, tail_s }) => new Option(`${thousands(step)}, ${several ? "longest " : ""}tail ${seconds(tail_s)}`, step)));
  $("step").value = page.start;
  $("run").append(...runs.map((run, r) => new Option(run.label, r)));
  document.querySelectorAll(".several").forEach((part) => { part.hidden = !several; });
  $("stops").hidden = !document.querySelector(".stops");
  $("step").addEventListener("change", () => choose(Number($("step").value)));
  $("earlier").addEventListener("click", () => move(-1));
  $("later").addEventListener("click", () => move(1));
  $("run").addEventListener("change", () => { groups(); tree(); });
  $("group").addEventListener("change", tree);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
  matchMedia("(max-width: 640px)").addEventListener("change", everything);
  await everything();
})();
