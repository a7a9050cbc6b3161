// Live updates: the server sends changes, and this file patches them into the page.  Without this
// file, a page shows the same and is reloaded every few seconds.
"use strict";
(() => {
  const page = document.getElementById("main").querySelector("[data-stream]");
  const sign = document.getElementById("live");
  let source = null, cursor = page && page.dataset.cursor;

  const show = (state, words) => {
    if (!sign) return;
    sign.dataset.state = state;
    sign.querySelector("b").textContent = words;
  };

  const say = (words) => { document.getElementById("said").textContent = words; };

  // Parts reload themselves (hx-trigger="refresh from:body") at limited rates: large parts less
  // often.
  const every = (milliseconds, name) => {
    let due = 0, last = 0;
    return () => {
      if (due) return;
      due = setTimeout(() => {
        due = 0;
        last = performance.now();
        htmx.trigger(document.body, name);
      }, Math.max(0, milliseconds - (performance.now() - last)));
    };
  };
  const soon = every(700, "refresh"), later = every(2500, "refresh-slow");
  const rarely = every(15000, "refresh-rarely"), head = every(700, "refresh-head");
  const parts = () => { soon(); later(); rarely(); };
  const refresh = () => { parts(); head(); };

  // For a part that is outdated or could not be read, no further event may come: it polls.
  let again = 0, due = Infinity;
  const retry = (seconds) => {
    const then = performance.now() + 1000 * seconds;
    if (then >= due) return;
    clearTimeout(again);
    due = then;
    again = setTimeout(() => { due = Infinity; refresh(); }, 1000 * seconds);
  };

  const fill = (place, field, text) => {
    for (const found of place.querySelectorAll(`[data-field="${field}"]`)) {
      found.textContent = text ?? "";
    }
  };

  const patch = (atom) => {
    for (const place of document.querySelectorAll(`[data-uuid="${CSS.escape(atom.uuid)}"]`)) {
      const badges = place.matches("svg *") ? [place] : place.querySelectorAll(".badge");
      for (const badge of badges) {
        for (const name of [...badge.classList]) {
          if (name.startsWith("state-")) badge.classList.remove(name);
        }
        badge.classList.add(`state-${atom.state}`);
      }
      for (const field of ["state", "icon", "executions", "worker"]) fill(place, field, atom[field]);
      if (place.hasAttribute("aria-label")) {
        place.setAttribute("aria-label", `${atom.name}, ${atom.state}`);
      }
      const bar = place.querySelector("progress");
      if (bar && atom.progress !== null) bar.value = atom.progress;
      if (bar) bar.hidden = atom.state !== "RUNNING" || !(atom.progress > 0);
    }
  };

  // Events contain the head of a flow without its forms, and the rows of a list that changed.
  const swap = (target, text, how) => htmx.swap({ sourceElement: target, target, text, swap: how });
  const patch_head = (news) => {
    const facts = document.getElementById("facts");
    if (!facts) return;
    swap(facts, news.facts, "innerMorph");
    if (document.getElementById("head").dataset.mark !== news.mark) head();
  };
  const patch_rows = (news) => {
    const body = document.querySelector("#rows tbody"), row = (uuid) => document.getElementById(`r-${uuid}`);
    const order = news.order ?? Object.keys(news.rows);
    if (!body || order.some((uuid) => !row(uuid) && !news.rows[uuid])) return refresh();
    for (const [uuid, text] of Object.entries(news.rows)) {
      const made = document.createElement("template");
      made.innerHTML = text;
      const before = row(uuid), after = made.content.querySelector("tr");
      if (!before) body.append(after);
      else {
        const links = (place) => [...place.querySelectorAll("a")];
        const at = links(before).indexOf(document.activeElement);
        before.replaceWith(after);
        if (at >= 0) links(after)[at]?.focus({ preventScroll: true });
      }
    }
    if (news.order) {
      news.order.forEach((uuid, at) => {
        if (body.children[at] !== row(uuid)) body.insertBefore(row(uuid), body.children[at]);
      });
      while (body.children.length > news.order.length) body.lastElementChild.remove();
    }
    if (news.foot !== undefined) swap(document.getElementById("foot"), news.foot, "outerMorph");
  };

  const heard = (event) => {
    const news = JSON.parse(event.data);
    if (event.lastEventId) cursor = event.lastEventId;
    for (const atom of news.atoms) patch(atom);
    const failed = news.atoms.filter((atom) => atom.state === "FAILURE").map((atom) => atom.name);
    if (failed.length) say(`Failed: ${failed.slice(0, 3).join(", ")}${failed.length > 3 ? " and others" : ""}`);
    if (news.head) patch_head(news.head);
    if (news.rows) patch_rows(news);
    if (news.changed) parts();
    if (news.ended) say(`The flow ended in state ${news.state}`);
  };

  const listen = () => {
    const where = new URL(page.dataset.stream, location.href);
    if (cursor) where.searchParams.set("cursor", cursor);
    source = new EventSource(where);
    source.onopen = () => show("on", "Live");
    source.onerror = () => {
      show("lost", "Reconnecting");
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
    };
    source.addEventListener("turn", heard);
  };

  if (page) {
    listen();
    // Without a stream, parts are polled.
    setInterval(() => { if (source.readyState !== EventSource.OPEN && !document.hidden) refresh(); }, 5000);
    // A hidden page closes its stream.  When shown again, it continues from its cursor.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) source.close();
      else if (source.readyState === EventSource.CLOSED) listen();
    });
  }

  // A part that cannot be read is kept and reloaded later, as is an outdated one, at the time that
  // its header names.  If the cookie expired or the flow was deleted, the whole page is reloaded.
  const missed = () => { show("lost", "Outdated"); retry(3); };
  document.addEventListener("htmx:error", missed);
  document.addEventListener("htmx:after:request", (event) => {
    const { status, headers } = event.detail.ctx.response;
    if (status === 401 || status === 404) location.reload();
    else if (status >= 500 || status === 429) missed();
    else if (source && source.readyState === EventSource.OPEN) show("on", "Live");
    else if (!source) show("off", "Not live");
    if (headers.has("refresh")) retry(Number(headers.get("refresh")));
  });

  // A filter applies when it is selected; text, when it is submitted.
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form.filters");
    if (form && event.target.matches("select, [type=checkbox]")) form.requestSubmit();
  });

  document.addEventListener("submit", (event) => {
    const words = event.target.dataset.confirm;
    if (words && !window.confirm(words)) event.preventDefault();
  });
})();
