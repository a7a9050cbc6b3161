"""The style sheet and the script of a report."""

from __future__ import annotations

from typing import Final

__all__ = ["CSS", "SCRIPT"]

CSS: Final = """
:root{color-scheme:light dark;
 --page:#f6f7f9;--card:#fff;--text:#1d2127;--soft:#5c6570;--rule:#e2e5ea;--accent:#2456c9;
 --share:#dbe5fb;
 --code:#f4f5f7;--bad:#b3201d}
@media (prefers-color-scheme:dark){:root{
 --page:#0f1216;--card:#161a20;--text:#e8eaed;--soft:#9aa4b1;--rule:#2a3039;--accent:#8db4ff;
 --share:#22345a;
 --code:#1f242c;--bad:#ff8a80}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;background:var(--page);color:var(--text);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:28px;line-height:1.2;letter-spacing:-.02em;margin:0 0 6px;overflow-wrap:anywhere}
h1 .wbe-pill{vertical-align:5px;margin-left:10px;letter-spacing:0}
h2{font-size:18px;letter-spacing:-.01em;margin:0 0 4px}
h3{font-size:15px;margin:18px 0 4px;overflow-wrap:anywhere}
p{margin:0 0 12px;max-width:80ch}
.dim,.lead{color:var(--soft)}
.lead{font-size:16px;max-width:none}
b{font-weight:600}
a{color:var(--accent)}
section,.tiles>div,nav{background:var(--card);border:1px solid var(--rule);border-radius:12px}
section{padding:20px 24px;margin-top:18px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;padding:10px 24px;margin-top:18px;font-size:14px}
nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px;
 margin:22px 0 0}
.tiles>div{padding:12px 16px;display:flex;flex-direction:column-reverse}
.tiles dt{color:var(--soft);font-size:13px}
.tiles dd{margin:0;font-size:22px;font-weight:600;letter-spacing:-.02em}
dd,td.n,th.n{font-variant-numeric:tabular-nums}
.notes{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:12px 28px;
 margin:20px 0 0}
.notes dt{color:var(--soft);font-size:13px}
.notes dd{margin:0;overflow-wrap:anywhere}
.waiting{border-left:3px solid var(--accent);padding:8px 14px;margin:18px 0 0;
 background:var(--card);max-width:none}
code,pre{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--code);border-radius:8px;padding:12px 14px;overflow:auto;font-size:12.5px;
 line-height:1.5;
 max-height:520px;margin:8px 0 0;white-space:pre-wrap;overflow-wrap:anywhere}
.scroll{overflow:auto;margin:0 -8px;padding:0 8px}
.graph{max-height:82vh}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:8px}
svg{display:block}
.wbe-chart{max-width:100%;height:auto;min-width:820px}
.wbe-graph{margin:0 auto}
table{border-collapse:collapse;width:100%;font-size:14px}
caption{text-align:left;color:var(--soft);padding:0 0 8px}
th,td{padding:5px 8px;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}
th.n,td.n{text-align:right}
td.wrap{white-space:normal;min-width:220px;overflow-wrap:anywhere}
thead th{position:sticky;top:0;background:var(--card);padding:0;z-index:1;
 box-shadow:inset 0 -1px var(--rule);border:0}
thead button{all:unset;box-sizing:border-box;width:100%;padding:8px;cursor:pointer;font-weight:600;
 color:var(--soft);font-size:13px}
thead th.n button{text-align:right}
thead button:hover{color:var(--text)}
thead button:focus-visible,summary:focus-visible{outline:2px solid var(--accent);
 outline-offset:-2px}
thead button::after{content:"\\2195";opacity:.35;margin-left:5px;font-size:11px}
th[aria-sort=ascending] button::after{content:"\\25B2";opacity:1}
th[aria-sort=descending] button::after{content:"\\25BC";opacity:1}
th[aria-sort] button{color:var(--text)}
tbody th{font-weight:500}
tbody tr:hover{background:var(--page)}
tbody tr:target{background:var(--share)}
tbody th,td.t{max-width:300px;overflow:hidden;text-overflow:ellipsis}
td.share{background:linear-gradient(var(--share),var(--share)) right/var(--part,0) 68% no-repeat}
.table{max-height:720px}
.find{font:inherit;color:inherit;background:var(--page);border:1px solid var(--rule);
 border-radius:8px;
 padding:6px 10px;margin:0 0 10px;width:min(340px,100%)}
.find:focus-visible{outline:2px solid var(--accent)}
details{margin-top:12px}
summary{cursor:pointer;font-weight:500;overflow-wrap:anywhere}
.failure>summary{color:var(--bad)}
details ul{margin:8px 0 0;padding-left:20px}
details li{overflow-wrap:anywhere}
footer{color:var(--soft);font-size:13px;margin-top:24px}
@media print{.scroll,.table,.graph,pre{overflow:visible;max-height:none}
 section{break-inside:avoid-page}nav,.find{display:none}}
"""

#: Sorts tables by the pressed column header, and filters rows by the typed text. The page is usable
#: without it.
SCRIPT: Final = """
for (const head of document.querySelectorAll("th[data-sort]")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const number = head.dataset.sort === "number";
    const old = head.getAttribute("aria-sort");
    const down = old ? old === "ascending" : number;
    const key = row => {
      const cell = row.cells[at], value = cell.dataset.value ?? cell.textContent;
      return number ? (value === "" ? -1 : Number(value)) : value;
    };
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      return (down ? -1 : 1) * (number ? x - y : x < y ? -1 : x > y ? 1 : 0);
    });
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
for (const field of document.querySelectorAll("input[data-finds]")) {
  field.hidden = false;
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of document.getElementById(field.dataset.finds).tBodies[0].rows)
      row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
  });
}
"""
