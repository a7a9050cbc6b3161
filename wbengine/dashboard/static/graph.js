// The graph of a flow: zoom, drag, search and a minimap.  Without this file, the graph has its drawn
// size and scroll bars, and a search leads to the table of tasks.
"use strict";
(() => {
  const tools = document.querySelector(".graph-tools");
  if (!tools) return;
  const LEAST = 0.1, MOST = 3, STEP = 1.25, READABLE = 0.75, MAP = 180;
  const field = tools.querySelector("input"), said = tools.querySelector("output");
  const canvas = () => document.getElementById("canvas");
  const picture = () => canvas() && canvas().querySelector(".wbe-graph");
  let scale = 0, found = [], at = -1;

  // The drawn size, before scaling.
  const size = (svg) => svg.viewBox.baseVal;
  const room = () => {
    const { clientWidth, clientHeight } = canvas();
    return { width: clientWidth - 32, height: clientHeight - 32 };
  };
  const fitting = (svg) => Math.min(1, room().width / size(svg).width, innerHeight * 0.7 / size(svg).height);

  // The picture is replaced while the flow runs; the scale stays.
  const show = () => {
    const svg = picture();
    tools.hidden = !svg;
    if (!svg) return;
    if (!scale) scale = Math.max(READABLE, Math.min(1, room().width / size(svg).width));
    svg.setAttribute("width", Math.round(size(svg).width * scale));
    svg.setAttribute("height", Math.round(size(svg).height * scale));
    draw();
  };

  // The point at x, y of the window stays in place.
  const zoom = (to, x, y) => {
    const svg = picture(), place = canvas();
    if (!svg) return;
    const before = svg.getBoundingClientRect(), window_ = place.getBoundingClientRect();
    x ??= window_.left + window_.width / 2;
    y ??= window_.top + window_.height / 2;
    const inside = [(x - before.left) / before.width, (y - before.top) / before.height];
    scale = Math.min(MOST, Math.max(LEAST, to));
    show();
    const after = svg.getBoundingClientRect();
    place.scrollLeft += after.left + inside[0] * after.width - x;
    place.scrollTop += after.top + inside[1] * after.height - y;
  };

  // -- minimap --

  const map = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  map.classList.add("minimap");
  map.setAttribute("aria-hidden", "true");
  map.innerHTML = "<use href='#picture'/><rect class='seen'/>";
  const draw = () => {
    const svg = picture(), place = canvas();
    if (!svg) return;
    const is_whole = place.scrollWidth <= place.clientWidth + 1 && place.scrollHeight <= place.clientHeight + 1;
    map.toggleAttribute("hidden", is_whole);
    if (is_whole) return;
    const { width, height } = size(svg), factor = MAP / Math.max(width, height);
    svg.id = "picture";
    map.setAttribute("viewBox", `0 0 ${width} ${height}`);
    map.setAttribute("width", Math.max(24, Math.round(width * factor)));
    map.setAttribute("height", Math.max(24, Math.round(height * factor)));
    const use = map.querySelector("use"), seen = map.querySelector("rect");
    use.setAttribute("width", width);
    use.setAttribute("height", height);
    const around = place.getBoundingClientRect(), inside = svg.getBoundingClientRect();
    seen.setAttribute("x", Math.max(0, around.left - inside.left) / scale);
    seen.setAttribute("y", Math.max(0, around.top - inside.top) / scale);
    seen.setAttribute("width", Math.min(width, place.clientWidth / scale));
    seen.setAttribute("height", Math.min(height, place.clientHeight / scale));
    if (!map.isConnected || map.parentElement !== place.parentElement) place.after(map);
  };
  const go = (event) => {
    const svg = picture(), place = canvas(), box = map.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * size(svg).width * scale;
    const y = (event.clientY - box.top) / box.height * size(svg).height * scale;
    place.scrollTo(x - place.clientWidth / 2, y - place.clientHeight / 2);
  };
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); go(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });

  // -- search --

  const mark = () => {
    const svg = picture(), wanted = field.value.trim().toLocaleLowerCase();
    if (!svg) return;
    for (const each of svg.querySelectorAll(".match")) each.classList.remove("match", "here");
    found = wanted ? [...svg.querySelectorAll("g.atom")].filter((each) =>
      each.querySelector("title").textContent.split("\n")[0].toLocaleLowerCase().includes(wanted)) : [];
    at = Math.min(at, found.length - 1);
    found.forEach((each, number) => {
      each.classList.add("match");
      each.classList.toggle("here", number === at);
    });
    said.textContent = !wanted ? "" : !found.length ? "Not in this graph; press Enter to search all tasks"
      : at < 0 ? `${found.length} found` : `${at + 1} of ${found.length} found`;
  };
  const centre = (item) => {
    const around = canvas().getBoundingClientRect(), box = item.getBoundingClientRect();
    canvas().scrollBy(box.left + box.width / 2 - around.left - around.width / 2,
                      box.top + box.height / 2 - around.top - around.height / 2);
  };
  const next = () => {
    at = (at + 1) % found.length;
    mark();
    centre(found[at]);
  };
  field.addEventListener("input", () => {
    at = -1;
    mark();
    if (found.length) next();
  });
  tools.addEventListener("submit", (event) => {
    if (!found.length) return;  // the form leads to the table, which has all tasks
    event.preventDefault();
    next();
  });

  // -- buttons, keys and pointers --

  tools.querySelector(".zooming").hidden = false;
  const steps = {
    in: () => zoom(scale * STEP), out: () => zoom(scale / STEP), whole: () => zoom(1),
    fit: () => zoom(fitting(picture())),
  };
  const act = (name) => { if (picture()) steps[name](); };
  tools.addEventListener("click", (event) => {
    const button = event.target.closest("[data-zoom]");
    if (button) act(button.dataset.zoom);
  });
  const keys = { "+": "in", "=": "in", "-": "out", "0": "fit", "1": "whole" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest("#canvas")) return;
    if (keys[event.key]) { event.preventDefault(); act(keys[event.key]); }
  });
  document.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey) || !event.target.closest("#canvas") || !picture()) return;
    event.preventDefault();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX, event.clientY);
  }, { passive: false });

  // A click on a task opens its page, unless it ended a drag.
  let held = null, dragged = false;
  document.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.button || event.pointerType === "touch" || !event.target.closest("#canvas")) return;
    held = { x: event.clientX, y: event.clientY, left: canvas().scrollLeft, top: canvas().scrollTop };
  });
  document.addEventListener("pointermove", (event) => {
    if (!held) return;
    const x = event.clientX - held.x, y = event.clientY - held.y;
    if (Math.abs(x) + Math.abs(y) > 4) dragged = true;
    if (dragged) canvas().scrollTo(held.left - x, held.top - y);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    document.addEventListener(name, () => { held = null; });
  }
  document.addEventListener("click", (event) => {
    if (dragged && event.target.closest("#canvas")) event.preventDefault();
    dragged = false;
  }, { capture: true });
  document.addEventListener("dragstart", (event) => {
    if (event.target.closest("#canvas")) event.preventDefault();
  });

  document.addEventListener("scroll", (event) => { if (event.target === canvas()) draw(); }, { capture: true });
  addEventListener("resize", draw);
  document.addEventListener("htmx:after:swap", () => { show(); mark(); });
  show();
  // After a sub-flow is opened or closed, it is centred and has the focus.
  const turned = /^#node-\d+$/.test(location.hash) && picture() &&
    picture().querySelector(`[data-node="${location.hash.slice(6)}"]`);
  if (turned) {
    centre(turned.matches(".flow") ? turned.querySelector("text") : turned);
    (turned.closest("a") || turned.querySelector("a") || turned).focus({ preventScroll: true });
  }
})();
