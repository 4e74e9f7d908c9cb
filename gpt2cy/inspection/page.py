# SPDX-License-Identifier: Apache-2.0
"""The page of a report: its style, its script, and the frame that they stand in.

The script draws the attention viewer from the data in the page; all else is plain HTML. Nothing is loaded
from anywhere, and the policy in the page's head lets no other script run, whatever text it shows.
"""

STYLE = """\
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff;
  max-width: 75rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.note { color: #444; max-width: 55rem; }
.tokens { font-family: ui-monospace, monospace; line-height: 2; overflow-wrap: anywhere; }
.tokens span { padding: 0.1em 0.15em; margin: 0 1px; border-radius: 0.2em; border: 1px solid #ccc;
  cursor: default; }
.tokens span.chosen { outline: 2px solid #b34700; }
#heads { display: grid; gap: 3px; justify-content: start; margin: 0.7rem 0; }
#heads button { padding: 0; border: 2px solid transparent; background: none; line-height: 0;
  cursor: pointer; }
#heads button[aria-pressed="true"] { border-color: #b34700; }
#heads canvas { width: 52px; height: 52px; image-rendering: pixelated; background: #00224e; }
#largest { font-family: ui-monospace, monospace; min-height: 1.6em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th { font-weight: normal; color: #444; text-align: left; padding: 0 0.6em 0 0; white-space: nowrap; }
table.lens td, table.lens thead th { font: 12px ui-monospace, monospace; white-space: pre; }
table.lens td { padding: 0.15em 0.35em; border: 1px solid #fff; }
.bar { background: #7b8bb3; height: 0.9em; display: inline-block; vertical-align: middle; min-width: 1px; }
"""

SCRIPT = """\
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = Uint8Array.from(atob(data.weights), letter => letter.charCodeAt(0));
const n = data.tokens.length, triangle = n * (n + 1) / 2;
const layer = document.getElementById("layer"), head = document.getElementById("head");
const direction = document.getElementById("direction"), largest = document.getElementById("largest");
const tokens = document.getElementById("tokens"), heads = document.getElementById("heads");
const state = new URLSearchParams(location.hash.slice(1));
let pinned = state.has("token") ? Math.min(n - 1, Math.max(0, +state.get("token") || 0)) : null;
let chosen = n - 1;

// How much position `from` takes of position `to`'s value, 0 to 1; rows are stored up to their own position.
function weight(l, h, from, to) {
  return to > from ? 0 : bytes[(l * data.heads + h) * triangle + from * (from + 1) / 2 + to] / 255;
}
function options(select, count, name) {
  for (let i = 0; i < count; i++) select.add(new Option(name + " " + i, i));
  const wanted = Math.floor(+state.get(select.id));
  select.value = wanted >= 0 && wanted < count ? wanted : 0;
}
// cividis at a few places: dark blue to yellow, told apart by lightness alone.
const stops = [[0, 34, 78], [53, 69, 107], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
function colour(share) {
  const at = Math.min(0.9999, share) * (stops.length - 1), i = Math.floor(at);
  return stops[i].map((low, c) => Math.round(low + (stops[i + 1][c] - low) * (at - i)));
}
function thumbnail(l, h) {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.width = canvas.height = n;
  const image = context.createImageData(n, n);
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
    const rgb = colour(Math.sqrt(weight(l, h, i, j))), at = 4 * (i * n + j);
    for (let c = 0; c < 3; c++) image.data[at + c] = rgb[c];
    image.data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
function paint() {
  const l = +layer.value, h = +head.value, to = direction.value === "to";
  const shares = data.tokens.map((_, i) => to ? weight(l, h, chosen, i) : weight(l, h, i, chosen));
  [...tokens.children].forEach((span, i) => {
    const strength = Math.sqrt(shares[i]);
    span.style.background = `rgb(0 60 130 / ${strength.toFixed(3)})`;
    span.style.color = strength > 0.6 ? "#fff" : "#111";
    span.classList.toggle("chosen", i === chosen);
    span.title = (100 * shares[i]).toFixed(1) + " %";
  });
  const order = shares.map((share, i) => [share, i]).filter(pair => pair[0] > 0);
  order.sort((a, b) => b[0] - a[0]);
  const said = ([share, i]) => `${data.tokens[i]} (${i}) ${(100 * share).toFixed(1)} %`;
  largest.textContent = data.tokens[chosen] + (to ? " \\u2192 " : " \\u2190 ") +
    order.slice(0, 6).map(said).join(", ");
  for (const button of heads.children)
    button.setAttribute("aria-pressed", +button.dataset.layer === l && +button.dataset.head === h);
}
function choose(i, pin) {
  if (pin) pinned = pinned === i ? null : i;
  chosen = pinned ?? i;
  paint();
}
options(layer, data.layers, "layer");
options(head, data.heads, "head");
direction.value = state.get("direction") === "from" ? "from" : "to";
data.tokens.forEach((text, i) => {
  const span = document.createElement("span");
  span.textContent = text;
  span.tabIndex = 0;
  span.addEventListener("mouseenter", () => choose(i, false));
  span.addEventListener("focus", () => choose(i, false));
  span.addEventListener("click", () => choose(i, true));
  tokens.append(span);
});
heads.style.gridTemplateColumns = `repeat(${data.heads}, auto)`;
for (let l = 0; l < data.layers; l++) for (let h = 0; h < data.heads; h++) {
  const button = document.createElement("button");
  button.title = `layer ${l}, head ${h}`;
  button.dataset.layer = l;
  button.dataset.head = h;
  button.append(thumbnail(l, h));
  button.addEventListener("click", () => { layer.value = l; head.value = h; paint(); });
  heads.append(button);
}
for (const select of [layer, head, direction]) select.addEventListener("change", paint);
choose(pinned ?? n - 1, false);
"""

FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpt2cy look</title>
<style>
{style}</style>
</head>
<body>
<h1>Inside a forward pass</h1>
<p>{about}</p>

<h2>How surprising each token is</h2>
<p class="note">Darker: less expected, given all before it. Point at a token for its numbers. The first has
nothing before it.</p>
{surprisal}

<h2>Where heads look</h2>
<p class="note">Point at a token, or click to hold it. The darker another, the more of its value is taken.
Below, every head as a picture, rows looking at columns, more being brighter; a row of pictures is a layer.
Colours go with the square root, so that small weights show. Weight says what is looked at, not what
matters.</p>
<p><label>Layer <select id="layer"></select></label> <label>Head <select id="head"></select></label>
<label>Show <select id="direction"><option value="to">where it looks</option>
<option value="from">who looks at it</option></select></label></p>
<div id="tokens" class="tokens"></div>
<p id="largest" aria-live="polite"></p>
<div class="scroll"><div id="heads"></div></div>

<h2>Logit lens</h2>
<p class="note">What the model would say next if it stopped after a block, and how probable it finds it.
Nothing trains the earlier blocks to be read so: see when an answer begins to lead.</p>
<div class="scroll">{lens}</div>

<h2>Time</h2>
<p class="note">Of one pass over this text, on the machine and with the threads that made this page.</p>
{times}

<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""
