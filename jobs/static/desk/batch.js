"use strict";
// Keeps a batch's bar, counts and newest pictures fresh from its small progress address. Where more than numbers changed
// (another version), the page's other parts are read anew by live.js. Nothing is asked in a hidden tab, nor after the end.
// Without this file there is the Reload link.
{
  const card = document.querySelector("[data-progress]");
  const LONGEST_S = 60;
  const DEADLINE_MS = 15_000;
  let every = Number(card?.dataset.progressEvery || 0);
  let timer = 0;
  let failures = 0;
  let asking = false;

  async function ask() {
    if (asking) return;
    asking = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(card.dataset.progress, { signal: AbortSignal.timeout(DEADLINE_MS) });
      if (answer.redirected) {
        every = 0; // logged out
        return;
      }
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      show(await answer.json());
      failures = 0;
    } catch {
      failures += 1;
    } finally {
      asking = false;
      card.classList.toggle("stale", failures > 0);
      wait();
    }
  }

  function show(seen) {
    every = seen.every_s;
    for (const [name, text] of Object.entries(seen.texts)) {
      for (const place of card.querySelectorAll(`[data-text="${name}"]`)) {
        if (place.textContent !== text) place.textContent = text;
      }
    }
    for (const [state, x, width] of seen.bar) {
      const part = card.querySelector(`[data-bar="${state}"]`);
      part.setAttribute("x", x);
      part.setAttribute("width", width);
    }
    const ended = seen.total - seen.counts.pending - seen.counts.active;
    card.querySelector("[data-bar-role]").setAttribute("aria-valuenow", ended);
    pictures(seen.shown);
    if (seen.version !== card.dataset.version) {
      card.dataset.version = seen.version;
      document.querySelector("a[data-reload]")?.click();
    }
  }

  // New ones come first; those that stay are not loaded again.
  function pictures(shown) {
    const place = document.querySelector("[data-shown]");
    const there = new Map([...place.children].map((one) => [one.dataset.id, one]));
    if (shown.map((one) => one.id).join() === [...there.keys()].join()) return;
    place.replaceChildren(...shown.map((one) => there.get(one.id) ?? picture(one)));
  }

  function picture({ id, src, href, label }) {
    const link = document.createElement("a");
    link.href = href;
    link.dataset.id = id;
    const box = document.createElement("span");
    box.className = "thumb";
    const image = document.createElement("img");
    image.src = src;
    image.alt = label;
    box.append(image);
    link.append(box);
    return link;
  }

  function wait() {
    clearTimeout(timer);
    if (document.hidden || !every) return;
    timer = setTimeout(ask, Math.min(every * 2 ** failures, LONGEST_S) * 1000);
  }

  if (card) {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(timer);
      else if (every) ask();
    });
    window.addEventListener("pageshow", (event) => {
      if (event.persisted && every) ask();
    });
    wait();
  }
}
