"""The style sheet of the page."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;
 --paper:#f7f7f5;--card:#fff;--ink:#1d2127;--dim:#5c6570;--line:#e2e4e8;--accent:#2456c9;
 --ours:#2f6fde;--kept:#7fa8ee;--peer:#b4bac4;--floor:#d8c39a;
 --s0:#2f6fde;--s1:#c2650a;--s2:#12876f}
@media (prefers-color-scheme:dark){:root{
 --paper:#111418;--card:#191d23;--ink:#e8eaed;--dim:#9aa4b1;--line:#2b313a;--accent:#8db4ff;
 --ours:#5b93f5;--kept:#3c5f9f;--peer:#59626f;--floor:#7a683f;
 --s0:#74a7ff;--s1:#ffa352;--s2:#4fd0b2}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.02em;margin:0 0 6px;text-wrap:balance}
h2{font-size:18px;letter-spacing:-.01em;margin:0 0 4px}
h3{font-size:14px;margin:0 0 6px}
p{margin:0 0 12px;max-width:78ch}
.dim,.lead{color:var(--dim)}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:22px 24px;
 margin-top:20px}
.charts{display:grid;gap:20px 28px;grid-template-columns:repeat(auto-fit,minmax(330px,1fr))}
figure{margin:0}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink);
 font-variant-numeric:tabular-nums}
svg text.dim,svg text.tick{fill:var(--dim)}
svg text.end{text-anchor:end}svg text.middle{text-anchor:middle}
svg text.ours{font-weight:600}
.bar{fill:var(--peer)}.bar.ours{fill:var(--ours)}.bar.kept{fill:var(--kept)}
.bar.floor{fill:var(--floor)}
.whisker{stroke:var(--ink);stroke-opacity:.55;stroke-width:1.2;fill:none}
.grid{stroke:var(--line)}
.curve{fill:none;stroke-width:2}
.s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s2{stroke:var(--s2)}
.dot.s0,text.s0{fill:var(--s0);stroke:none}.dot.s1,text.s1{fill:var(--s1);stroke:none}
.dot.s2,text.s2{fill:var(--s2);stroke:none}
svg text.s0,svg text.s1,svg text.s2{font-weight:600}
svg text.s0{fill:var(--s0)}svg text.s1{fill:var(--s1)}svg text.s2{fill:var(--s2)}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:2px 0 14px;padding:0;list-style:none;
 color:var(--dim);font-size:13px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;
 vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:5px 8px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:600;font-size:13px}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
summary{cursor:pointer;color:var(--accent)}
@media print{section{break-inside:avoid}body{background:#fff}}
"""
