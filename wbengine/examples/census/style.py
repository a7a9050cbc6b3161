"""The style sheet and the script of census.html."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root{color-scheme:light dark;
 --paper:#f7f7f5;--card:#fff;--ink:#1d2127;--dim:#5c6570;--line:#e2e4e8;--edge:#9aa3af;--accent:#2456c9;
 --bar:#d9e3fa;--warn:#9a5b00;
 --w0:#2f6fde;--w1:#d9730d;--w2:#12876f;--w3:#8b46c9;--w4:#c2356f;--w5:#0d7f9c;--w6:#637a12;--w7:#a5502f}
@media (prefers-color-scheme:dark){:root{
 --paper:#111418;--card:#191d23;--ink:#e8eaed;--dim:#9aa4b1;--line:#2b313a;--edge:#64707f;--accent:#8db4ff;
 --bar:#24365c;--warn:#f0b35b;
 --w0:#74a7ff;--w1:#ffa352;--w2:#4fd0b2;--w3:#c596ff;--w4:#ff86b3;--w5:#58c7e4;--w6:#b8cf55;--w7:#e39b7c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.02em;margin:0 0 6px;text-wrap:balance}
h2{font-size:18px;letter-spacing:-.01em;margin:0 0 4px}
p{margin:0 0 12px;max-width:78ch}
.dim,.lead{color:var(--dim)}
.lead{font-size:16px;max-width:none}
b{font-weight:600}
section,.tiles>div{background:var(--card);border:1px solid var(--line);border-radius:12px}
section{padding:22px 24px;margin-top:20px}
.tiles{display:grid;
 grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px;margin:26px 0 0}
.tiles>div{padding:12px 16px;display:flex;flex-direction:column-reverse}
.tiles dt{color:var(--dim);font-size:13px}
.tiles dd{margin:0;font-size:23px;font-weight:600;letter-spacing:-.02em}
dd,td.n,th.n,.num{font-variant-numeric:tabular-nums}
.notes{display:grid;
 grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:12px 28px;margin:20px 0 0}
.notes dt{color:var(--dim);font-size:13px}
.notes dd{margin:0;overflow-wrap:anywhere}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.legend{display:flex;flex-wrap:wrap;gap:6px 22px;list-style:none;margin:8px 0 12px;padding:0}
.legend svg{width:14px;height:14px;vertical-align:-2px;margin-right:6px;overflow:visible}
.scroll{overflow:auto;margin:0 -8px;padding:0 8px}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:8px}
svg.graph,svg.timeline{display:block;margin:0 auto}
svg.timeline{max-width:100%;height:auto;min-width:760px}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink)}
.graph text{font-size:9.5px}
.graph text.end{text-anchor:end}
text.middle,text.tick,text.on{text-anchor:middle}
.graph text.middle{font-size:12px;font-weight:600}
text.halo{paint-order:stroke;stroke:var(--card);stroke-width:5px;stroke-linejoin:round}
text.name{font-weight:600;font-size:12px}
svg text.dim,text.tick{fill:var(--dim)}
text.on{fill:var(--card);font-size:10.5px;font-weight:600;pointer-events:none}
.edge{fill:none;stroke:var(--edge);stroke-width:1;stroke-opacity:.75}
.edge.far{stroke-opacity:.28}
.edge.strong{stroke-width:2;stroke-opacity:1}
.tip{fill:var(--edge)}
.ring{fill:none;stroke:var(--line)}
.ring.dashed{stroke:var(--edge);stroke-opacity:.9;stroke-dasharray:2 4}
.grid{stroke:var(--line)}
.lane{fill:var(--paper)}
.node{stroke:var(--card);stroke-width:1}
.spoke:hover .edge{stroke:var(--accent);stroke-opacity:1;stroke-width:1.6}
.spoke:hover text{fill:var(--accent);font-weight:700}
.node:hover,.bar:hover{stroke:var(--ink);stroke-width:1.5}
.bar.add-up{opacity:.55}
.w0{fill:var(--w0)}.w1{fill:var(--w1)}.w2{fill:var(--w2)}.w3{fill:var(--w3)}
.w4{fill:var(--w4)}.w5{fill:var(--w5)}.w6{fill:var(--w6)}.w7{fill:var(--w7)}
table{border-collapse:collapse;width:100%;font-size:14px}
caption{text-align:left;color:var(--dim);padding:0 0 8px}
th,td{padding:5px 8px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
th.n,td.n{text-align:right}
thead th{position:sticky;top:0;background:var(--card);padding:0;z-index:1;
 box-shadow:inset 0 -1px var(--line);border:0}
thead button{all:unset;box-sizing:border-box;width:100%;padding:8px;cursor:pointer;font-weight:600;
 color:var(--dim);font-size:13px}
thead th.n button{text-align:right}
thead button:hover{color:var(--ink)}
thead button:focus-visible,summary:focus-visible{outline:2px solid var(--accent);
 outline-offset:-2px}
thead button::after{content:"\\2195";opacity:.35;margin-left:5px;font-size:11px}
th[aria-sort=ascending] button::after{content:"\\25B2";opacity:1}
th[aria-sort=descending] button::after{content:"\\25BC";opacity:1}
th[aria-sort] button{color:var(--ink)}
tbody th{font-weight:500}
tbody tr:hover{background:var(--paper)}
tbody th,td.t{max-width:210px;overflow:hidden;text-overflow:ellipsis}
td.share{background:linear-gradient(var(--bar),var(--bar)) right/var(--part,0) 68% no-repeat}
.table{max-height:720px}
details{margin-top:14px}
summary{cursor:pointer;color:var(--warn);font-weight:500}
details ul{margin:8px 0 0;padding-left:20px}
details li{overflow-wrap:anywhere}
footer{color:var(--dim);font-size:13px;margin-top:24px}
@media print{.scroll,.table{overflow:visible;max-height:none}section{break-inside:avoid-page}}
"""

#: Sorts the table by the column whose header is pressed; the page is whole without it.
SCRIPT: Final = """
for (const head of document.querySelectorAll("th[data-sort]")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const number = head.dataset.sort === "number";
    const old = head.getAttribute("aria-sort");
    const down = old ? old === "ascending" : number;
    const key = row => row.cells[at].dataset.value ?? row.cells[at].textContent;
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) *
      (number ? key(a) - key(b) : key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
"""
