// Keeps the page fresh, and gives it its keys. Everything works without it, by forms and links.
(() => {
  "use strict";
  const bus = new BroadcastChannel("tightloop-events");
  const main = () => document.getElementById("main");
  const here = (event) => {
    const wanted = main().dataset.live || "";
    return wanted === "*" || wanted.split(" ").includes(event.episodeId) || wanted.split(" ").includes(event.project);
  };

  // -- live: one stream for all tabs, since a browser opens six connections to a host at most ---------------
  let due = null, busy = false, last = document.body.dataset.seen;
  const typing = () => main().contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
  // What a person has begun to fill in, or to read in a dialog, is not exchanged below their hands.
  const begun = () => document.querySelector("dialog[open], details.act[open]") ||
    [...main().querySelectorAll("form[method=post] :is(input, textarea)")].some((field) =>
      field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);
  const refresh = () => {
    if (due !== null || !main().dataset.live) return;
    due = setTimeout(async () => {
      due = null;
      if (busy || typing() || document.hidden || begun()) { missed = true; return; }
      busy = true; missed = false;
      try { await htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerMorph", headers: { "Tightloop-Seen": last || "0" } }); } finally { busy = false; }
      count();
      if (missed) refresh();
    }, 400);
  };
  let missed = false;
  document.addEventListener("visibilitychange", () => { if (!document.hidden && missed) refresh(); });
  document.addEventListener("focusout", () => { if (missed) refresh(); });
  const count = () => {
    const waiting = Number(main().dataset.waiting || 0);
    const plain = document.title.replace(/^\(\d+\) /, "");
    document.title = waiting ? `(${waiting}) ${plain}` : plain;
    const shown = document.querySelector("[data-waiting-count]");
    if (shown) { shown.textContent = waiting; shown.hidden = !waiting; }
    if (waiting > (count.before ?? waiting) && localStorage.notify === "on" && Notification.permission === "granted")
      new Notification("tightloop needs a response", { body: main().dataset.asked || "", tag: "tightloop" });
    count.before = waiting;
  };
  const stale = (is) => { const strip = document.getElementById("stale"); if (strip) strip.hidden = !is; };
  const heard = (message) => {
    if (message.state) { stale(message.state === "lost"); if (message.state === "open") refresh(); return; }
    last = message.id || last;
    if (message.reset || here(message.event)) refresh();
  };
  // A new page asks the one with the stream what it has missed since it was made.
  let streams = false;
  bus.onmessage = ({ data }) => {
    if (data.shown === undefined) return heard(data);
    if (streams && Number(last) > Number(data.shown)) bus.postMessage({ id: last, reset: true });
  };
  bus.postMessage({ shown: last });
  const tell = (message) => { bus.postMessage(message); heard(message); };
  navigator.locks?.request("tightloop-events", () => new Promise(() => {
    streams = true;
    const source = new EventSource(last ? `/api/events?lastEventId=${encodeURIComponent(last)}` : "/api/events");
    source.addEventListener("trail", (event) => tell({ id: event.lastEventId, event: JSON.parse(event.data) }));
    source.addEventListener("reset", (event) => tell({ id: event.lastEventId, reset: true }));
    let lost = false;
    source.onerror = () => { lost = true; tell({ state: "lost" }); };
    source.onopen = () => { if (lost) tell({ state: "open" }); lost = false; };
  }));

  // -- theme, notifications -----------------------------------------------------------------------------------
  const toggle = { theme: () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = localStorage.theme = dark ? "light" : "dark";
  }, notify: async () => {
    if (localStorage.notify === "on") { localStorage.notify = "off"; return; }
    localStorage.notify = (await Notification.requestPermission()) === "granted" ? "on" : "off";
  }, keys: () => { localStorage.keys = localStorage.keys === "off" ? "on" : "off"; } };
  if (localStorage.theme) document.documentElement.dataset.theme = localStorage.theme;

  // -- clicks: dialogs and switches ---------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-open], [data-close], [data-switch], [data-zoom]");
    if (!target) return;
    if (target.dataset.open) document.getElementById(target.dataset.open).showModal();
    if ("close" in target.dataset) target.closest("dialog").close();
    if (target.dataset.switch) toggle[target.dataset.switch]();
    if (target.dataset.zoom) zoom(target.dataset.zoom);
  });
  // -- forms that change something: two different actions send one, and Enter is neither ---------------------------
  // The server does nothing without `confirmed`, but asks first. It is added here where a person selected an option, or
  // pressed a button with a pointer, and that needs no sentence of its own.
  let pointer = false;
  document.documentElement.classList.add("scripts");
  document.addEventListener("click", (event) => { pointer = event.detail > 0; }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const form = event.target.closest?.("form[method=post]"), withControl = event.ctrlKey || event.metaKey;
    if (!form || event.target.matches("a") || (event.target.matches("textarea") && !withControl)) return;
    event.preventDefault();
    const button = form.querySelector("button:enabled");
    pointer = false;
    if (withControl && button && !event.repeat) form.requestSubmit(button);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target, option = form.querySelector("input[type=radio]:checked");
    if (form.method !== "post") return;
    if (option && !option.value) {
      event.preventDefault(); option.focus();
      form.querySelector("[data-hint]").textContent = "No option is selected yet. Use the arrow keys or click an option.";
    } else if ((option || pointer) && !("confirm" in (option ?? event.submitter).dataset)) {
      form.addEventListener("formdata", ({ formData }) => formData.set("confirmed", "yes"), { once: true });
    }
  });

  // -- graph: zoom and pan by the view box ----------------------------------------------------------------------
  const svg = () => document.querySelector(".graph svg");
  let view = null;
  const box = () => view ?? svg().viewBox.baseVal;
  const show = (x, y, width, height) => { view = { x, y, width, height }; svg().setAttribute("viewBox", `${x} ${y} ${width} ${height}`); };
  const scale = (factor, cx = .5, cy = .5) => { const { x, y, width, height } = box();
    show(x + width * cx * (1 - factor), y + height * cy * (1 - factor), width * factor, height * factor); };
  const zoom = (how) => {
    const [, , width, height] = svg().dataset.whole.split(" ").map(Number);
    if (how === "in") return scale(.75);
    if (how === "out") return scale(4 / 3);
    if (how === "fit") return show(0, 0, width, height);
    const node = svg().querySelector(`g.${how} rect`);
    if (node) { const at = node.getBBox(); show(at.x - 300, at.y - 150, 776, 340); }
  };
  document.addEventListener("wheel", (event) => {
    if (!event.target.closest?.(".graph svg") || !event.ctrlKey) return;
    event.preventDefault(); const at = svg().getBoundingClientRect();
    scale(event.deltaY < 0 ? .9 : 1.1, (event.clientX - at.left) / at.width, (event.clientY - at.top) / at.height);
  }, { passive: false });
  document.addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1) || !event.target.closest?.(".graph svg")) return;
    const { x, y, width, height } = box(), at = svg().getBoundingClientRect(), by = Math.max(width / at.width, height / at.height);
    show(x - event.movementX * by, y - event.movementY * by, width, height);
  });
  // A large graph begins where the work is: as a whole nobody could read it.
  if (svg() && Number(svg().dataset.whole.split(" ")[2]) > 2400) {
    const at = svg().querySelector("g.running rect, g.bad rect, g rect").getBBox();
    show(at.x - 480, at.y - 220, 1160, 480);
  }
  document.addEventListener("htmx:after:swap", () => { if (view && svg()) show(view.x, view.y, view.width, view.height); });

  // -- keys -----------------------------------------------------------------------------------------------------------
  const go = { i: "/", e: "/episodes", p: "/plans", j: "/projects", m: "/metrics", w: "/workers" };
  let first = "";
  const items = () => [...document.querySelectorAll("[data-item]")];
  const move = (step) => { const all = items(); if (!all.length) return;
    const at = all.indexOf(document.activeElement.closest("[data-item]"));
    (all[Math.min(Math.max(at + step, 0), all.length - 1)].querySelector("a, button:enabled") ?? all[0]).focus(); };
  const nearest = (selector) => (document.activeElement.closest("[data-item]") ?? document).querySelector(selector);
  const press = (selector) => { const found = nearest(selector); found?.focus(); found?.click(); };
  document.addEventListener("keydown", (event) => {
    if (localStorage.keys === "off" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    const key = first + event.key; first = "";
    if (event.key === "g" && key === "g") { first = "g"; return; }
    if (key[0] === "g" && go[key[1]]) { location.href = go[key[1]]; return; }
    const act = { j: () => move(1), k: () => move(-1), "?": () => document.getElementById("keys")?.showModal(),
      "/": () => document.querySelector("input[type=search]")?.focus(), v: () => press("[data-key=v]"), r: () => press("[data-key=r]"),
      a: () => nearest("fieldset:enabled input:checked")?.focus(), f: () => zoom("bad"),
      n: () => jump(1), p: () => jump(-1) }[key];
    if (act) { event.preventDefault(); act(); }
  });
  const jump = (step) => { const files = [...document.querySelectorAll(".file > summary")]; if (!files.length) return;
    const at = files.indexOf(document.activeElement); const next = files[(at + step + files.length) % files.length];
    next.focus(); next.scrollIntoView({ block: "start" }); };
  count();
})();
