"""The page's style: system fonts, light and dark, nothing fetched."""

#: Colours of the formats in charts, as CSS classes: told apart by the colour-blind, readable on both backgrounds.
FORMAT_CLASSES = {"saved_model": "c1", "onnx": "c2", "tflite": "c3"}

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --text: #1c2026; --quiet: #5b6470; --line: #dfe3e8; --panel: #f6f7f9;
  --c1: #4269b0; --c2: #b35c00; --c3: #1f8a70; --heat: 66,105,176; --good: #1a7f4b; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171b; --text: #e6e9ed; --quiet: #9aa4b0; --line: #323941; --panel: #1c2127;
  --c1: #7fa5ea; --c2: #e69a4b; --c3: #4cc3a1; --heat: 127,165,234; --good: #5cc98d; --bad: #ff8f80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: .95rem; margin: 0 0 .4rem; font-weight: 600; }
p { margin: 0 0 .5rem; } .lead, .quiet, dt { color: var(--quiet); }
.verdict { margin: 1rem 0 0; padding: .7rem 1rem; border-left: 4px solid var(--good); background: var(--panel); }
.failed { border-left-color: var(--bad); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; font-size: .85rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.n { white-space: normal; }
td.reason { overflow-wrap: anywhere; min-width: 20rem; } td .bad { color: var(--bad); } td .good { color: var(--good); }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: nowrap; }
.charts { display: grid; gap: 1.5rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); }
.wide { grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
.chart svg { display: block; width: 100%; max-width: 36rem; height: auto; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; } svg .axis { fill: var(--quiet); }
svg line { stroke: var(--line); } svg .limit { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .limit-text { fill: var(--bad); }
svg .c1 { fill: var(--c1); } svg .c2 { fill: var(--c2); } svg .c3 { fill: var(--c3); } svg .c0 { fill: var(--quiet); }
svg .cell { fill: rgb(var(--heat)); } svg .empty { fill: none; stroke: var(--line); }
svg .dense { fill: var(--page); }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); }
.card { display: grid; grid-template-columns: 72px 1fr; gap: .25rem .8rem; padding: .7rem; background: var(--panel);
  border-radius: 6px; font-size: .84rem; line-height: 1.4; }
.card td:first-child { overflow-wrap: anywhere; min-width: 7.5rem; }
.card .scroll { grid-column: 1 / -1; } .card table { font-variant-numeric: tabular-nums; }
.card th, .card td { padding: .15rem .6rem .15rem 0; } .card th { font-size: 1em; }
.card tr:last-child td { border-bottom: 0; }
.card img { width: 72px; height: 72px; object-fit: contain; image-rendering: pixelated; background: #0002; }
.card .what:first-child { grid-column: 1 / -1; }
.card .none { grid-column: 1 / -1; color: var(--quiet); }
.card p { margin: 0; overflow-wrap: anywhere; } .card .error { font-variant-numeric: tabular-nums; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 0; }
dd { margin: 0; overflow-wrap: anywhere; }
"""
