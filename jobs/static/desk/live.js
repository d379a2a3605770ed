"use strict";
// Keeps a page about work under way fresh: its parts marked data-live are read again every few seconds and put in place of
// the old ones where they differ; where the page has a stream (stream.js), when that tells of another version instead.
// Nothing is read in a hidden tab, nor once nothing more will change by itself. Without this file there is the Reload link.
{
  const LONGEST_S = 60;
  const LEAST_MS = 2_000;
  const DEADLINE_MS = 20_000;
  let timer = 0;
  let failures = 0;
  let reading = false;
  let lastAt = 0;
  let tookMs = 0;
  let soonTimer = 0;

  const heard = document.querySelector("[data-live-version]");
  const listening = () => ["first", "yes"].includes(heard?.dataset.listening);
  const every = () => Number(document.querySelector("[data-every]")?.dataset.every || 0);
  const parts = (page) => new Map([...page.querySelectorAll("[data-live]")].map((part) => [part.dataset.live, part]));
  // The token of a form is another one in each answer.
  const content = (part) => part.innerHTML.replace(/(name="csrfmiddlewaretoken" value=")[^"]*/g, "$1");

  // A part that somebody is at stays as it is until they leave it.
  function inUse(part) {
    const at = document.activeElement;
    if (part.contains(at) && at.matches("input, textarea, select")) return true;
    if (part.querySelector("details.menu[open]")) return true;
    const selection = window.getSelection();
    return !selection.isCollapsed && selection.containsNode(part, true);
  }

  const folds = (part) =>
    [...part.querySelectorAll("details.fold")].map((fold) => [fold.closest("[id]")?.id ?? "", fold]);

  function replace(old, fresh) {
    const open = new Map(folds(old).map(([id, fold]) => [id, fold.open]));
    const focusable = "a[href], button, summary";
    const focus = [...old.querySelectorAll(focusable)].indexOf(document.activeElement);
    old.replaceChildren(...fresh.childNodes);
    for (const [id, fold] of folds(old)) if (open.has(id)) fold.open = open.get(id);
    if (focus >= 0) old.querySelectorAll(focusable)[focus]?.focus({ preventScroll: true });
  }

  async function read() {
    const answer = await fetch(location.href, {
      headers: { "X-Live": "1" },
      signal: AbortSignal.timeout(DEADLINE_MS),
    });
    if (answer.redirected) return null; // logged out
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  // True where the page is fresh now.
  async function refresh() {
    if (reading) return true;
    reading = true;
    clearTimeout(timer);
    const begin = performance.now();
    let page;
    try {
      page = await read();
      failures = 0;
    } catch {
      failures += 1;
    } finally {
      reading = false;
      lastAt = performance.now();
      tookMs = lastAt - begin;
    }
    document.querySelector(".as-of")?.classList.toggle("stale", !page);
    if (page) {
      const fresh = parts(page);
      for (const [name, part] of parts(document)) {
        const other = fresh.get(name);
        if (other && content(other) !== content(part) && !inUse(part)) replace(part, other);
      }
    }
    if (page !== null) wait();
    return Boolean(page);
  }

  function wait() {
    clearTimeout(timer);
    if (document.hidden || !every() || (listening() && !failures)) return;
    timer = setTimeout(refresh, Math.min(every() * 2 ** failures, LONGEST_S) * 1000);
  }

  // Changes come in crowds, and to everyone at once: one reading for several, not all at the same moment, and fewer where
  // the server is slow.
  function soon() {
    clearTimeout(soonTimer);
    const gapMs = Math.max(LEAST_MS, 10 * tookMs);
    const waitMs = Math.max(lastAt + gapMs - performance.now(), 0) + (Math.random() * LEAST_MS) / 4;
    soonTimer = setTimeout(() => {
      if (reading) soon();
      else if (!document.hidden) refresh();
    }, waitMs);
  }

  // stream.js has seen the same event before.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (every() && !listening()) refresh();
  });
  window.addEventListener("pageshow", (event) => {
    if (event.persisted && every() && !listening()) refresh();
  });
  heard?.addEventListener("stream-state", (event) => {
    clearTimeout(timer);
    if (event.detail.version === heard.dataset.liveVersion) return;
    heard.dataset.liveVersion = event.detail.version;
    soon();
  });
  heard?.addEventListener("stream-lost", () => {
    if (every()) refresh();
  });
  document.addEventListener("click", async (event) => {
    if (!event.target.closest("[data-reload]") || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (!(await refresh())) location.reload();
  });
  wait();
}
