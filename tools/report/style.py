"""The style sheet of the compile report's page.

Blue, orange and grey differ in lightness as well as hue, so they stay apart
for colour-blind readers and in grey print; each holds at least 3:1 against the
page, and text at least 4.5:1. Dark colours are for screens only: print stays
light.
"""

CSS = """
:root { color-scheme: light dark; --page: #f7f8f9; --card: #ffffff;
  --ink: #1b2027; --soft: #57606b; --line: #dfe3e8; --grid: #edf0f3;
  --track: #e7eaee; --mxu: #1f6fb4; --dma: #c97800; --idle: #8b949e;
  --band0: #eef1f4; --band1: #dfe4ea; --bad: #b3261e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #101317; --card: #181c21; --ink: #e8eaed; --soft: #a7afb9;
    --line: #2d333b; --grid: #242a31; --track: #2a3038; --mxu: #5aa6e6;
    --dma: #eda43a; --idle: #737d89; --band0: #1f242b; --band1: #2b323b;
    --bad: #ff8a80; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Liberation Sans", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 8px;
  letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 4px; }
h3 { font-size: 1rem; margin: 24px 0 8px; overflow-wrap: anywhere; }
p { margin: 0 0 12px; max-width: 68ch; overflow-wrap: anywhere; }
.lead { font-size: 1.0625rem; color: var(--soft); }
.soft, figcaption, .facts { color: var(--soft); font-size: .875rem; }
.bad { color: var(--bad); overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; padding: 24px; margin-top: 24px; min-width: 0; }
.source { margin-top: 20px; }
figure { margin: 16px 0 0; min-width: 0; }
figure > h3 { margin-top: 4px; }
section > :last-child { margin-bottom: 0; }
ul { padding-left: 1.2em; margin: 8px 0; max-width: 72ch; }
li { margin: 4px 0; overflow-wrap: anywhere; }
code, .kernel { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; font-size: .8125rem; overflow-wrap: anywhere;
  font-weight: 400; }

.cards { display: grid; gap: 24px 40px; margin: 20px 0 8px; align-items: end;
  grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); }
.card .name { color: var(--soft); font-size: .875rem; }
.card .big { font-size: 2.5rem; line-height: 1.15; font-weight: 650;
  letter-spacing: -0.02em; margin-bottom: 8px; }
.card .big small { font-size: 1rem; font-weight: 400; color: var(--soft);
  letter-spacing: 0; }

.scroll { overflow-x: auto; margin-top: 12px; position: relative; }
.scroll + p, svg + figcaption { margin-top: 8px; }
.scroll:focus-visible { outline: 2px solid var(--mxu); outline-offset: 4px; }
table { border-collapse: separate; border-spacing: 0; width: 100%;
  font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: 6px; }
th, td { padding: 7px 10px; text-align: right; vertical-align: baseline;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom;
  white-space: normal; }
th:first-child, .words, td.words, th.pic { text-align: left; }
th:first-child { position: sticky; left: 0; z-index: 1;
  background: var(--card); }
tbody th { font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
tr.chip th { padding-top: 18px; color: var(--soft); }
tfoot th, tfoot td { font-weight: 600; border-top: 1px solid var(--line);
  border-bottom: 0; }
table.tight th, table.tight td { padding: 7px 6px; }
table.tight th:first-child { padding-left: 0; }
table.tight :is(th, td):last-child { padding-right: 0; }
table.bars thead th { white-space: nowrap; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 15em; }
td.pic, th.pic { text-align: left; min-width: 110px; }
td.pic { vertical-align: middle; }
.mode { font-weight: 400; color: var(--soft); }
details { border-top: 1px solid var(--line); padding: 10px 0; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
summary:focus-visible { outline: 2px solid var(--mxu); outline-offset: 2px; }
summary .kernel { color: var(--soft); margin-left: 6px; }

svg { display: block; } svg.bar { overflow: visible; }
svg.patterns { position: absolute; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 6px; vertical-align: -1px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 10px 0;
  font-size: .875rem; color: var(--soft); }
.legend svg { display: inline-block; vertical-align: -3px; margin-right: 6px;
  overflow: visible; }
.mxu, .useful { fill: var(--mxu); background: var(--mxu); }
.dma { fill: var(--dma); background: var(--dma); }
.idle, .beyond { fill: var(--idle); background: var(--idle); }
.track { fill: var(--track); }
.rule { stroke: var(--card); stroke-width: 2; }
.tick { stroke: var(--ink); stroke-width: 2; }
rect.outside { fill: url(#hatch); } pattern .outside { fill: var(--dma); }
.stripe { fill: var(--card); }
.sliver { stroke-width: 1; } .useful.sliver { stroke: none; }
.outside.sliver { stroke: var(--dma); } .beyond.sliver { stroke: var(--idle); }
.band0 { fill: var(--band0); } .band1 { fill: var(--band1); }
svg.map { border-radius: 4px; }

.plots { display: grid; gap: 8px 40px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.frame { padding: 6px 20px 44px 46px; position: relative; }
.frame .y { color: var(--soft); font-size: .8125rem; margin: 0 0 6px -46px; }
.frame .x { color: var(--soft); font-size: .8125rem; position: absolute;
  right: 20px; bottom: 0; }
svg.plot, svg.open { overflow: visible; }
.grid { stroke: var(--grid); }
.axis { fill: var(--soft); font-size: 12px; }
.roof { stroke: var(--ink); stroke-width: 2; stroke-linecap: round; }
.roof-label, .point-label { font-size: 12.5px; fill: var(--ink);
  paint-order: stroke; stroke: var(--card); stroke-width: 4px;
  stroke-linejoin: round; }
.roof-label { fill: var(--soft); }
.point { fill: var(--mxu); }
.point .hollow { fill: none; stroke: var(--mxu); stroke-width: 2; }
.leader { stroke: var(--idle); fill: none; }

@media (max-width: 640px) {
  main { padding: 24px 12px 48px; } h1 { font-size: 1.5rem; }
  section { padding: 18px 14px; border-radius: 10px; margin-top: 14px; }
  .card .big { font-size: 2rem; } th, td { padding: 7px 7px; }
  tbody th { white-space: normal; overflow-wrap: anywhere; }
  table.plain tbody th { min-width: 6em; max-width: 9.5em; }
  table.bars, table.bars thead, table.bars tbody { display: block; }
  table.bars tr { display: grid; padding: 8px 0; gap: 2px 4px;
    border-bottom: 1px solid var(--line);
    grid-template-columns: 1fr 5em 4em 4em 4em; }
  table.bars tr > * { border: 0; padding: 0; min-width: 0; }
  table.bars .pic { grid-column: 1 / -1; order: 9; padding-top: 4px; }
  table.bars thead .pic { display: none; }
  table.bars .whole { grid-column: 1 / -1; }
}
@media print {
  :root { color-scheme: light; } body { background: none; font-size: 11pt; }
  main { max-width: none; padding: 0; }
  section { border: 0; padding: 0; margin-top: 18pt; }
  figure, tr, .card { break-inside: avoid; } h2, h3 { break-after: avoid; }
  table { font-size: 7.5pt; } th, td { padding: 2pt 4pt; }
  .scroll { overflow: visible; }
  details::details-content { content-visibility: visible; block-size: auto; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
