"use strict";
// Keeps a batch's bar, counts and newest pictures fresh: from its stream (stream.js), or else from its small progress
// address. Where more than numbers changed (another version), the page's other parts are read anew by live.js. Nothing is
// asked after the end, nor in a hidden tab, but for once a minute where somebody wants to be told of the end.
// Without this file there is the Reload link.
{
  const card = document.querySelector("[data-progress]");
  const LONGEST_S = 60;
  const HIDDEN_S = 60;
  const DEADLINE_MS = 15_000;
  let every = Number(card?.dataset.progressEvery || 0);
  let timer = 0;
  let failures = 0;
  let asking = false;

  const listening = () => !document.hidden && ["first", "yes"].includes(card.dataset.listening);

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
      const seen = await answer.json();
      failures = 0;
      if (!listening()) show(seen); // the stream's is newer
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
    if (seen.done) tellOfTheEnd();
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
    if (!every || listening() || (document.hidden && !wanted())) return;
    const wait_s = document.hidden ? HIDDEN_S : Math.min(every * 2 ** failures, LONGEST_S);
    timer = setTimeout(ask, wait_s * 1000);
  }

  // "Tell me when it is done": a notification of the browser's. Wanted for this batch in this tab, until it was told.
  const place = document.querySelector("[data-tell]");
  const button = place?.querySelector("button");
  // On Android only a service worker may notify.
  const canTell = place && window.isSecureContext && "Notification" in window && !/Android/.test(navigator.userAgent);
  const wanted = () =>
    canTell && Notification.permission === "granted" && sessionStorage.getItem(place.dataset.tell) === "wanted";

  function showWanted() {
    place.hidden = !canTell || !every || Notification.permission === "denied";
    button.setAttribute("aria-pressed", wanted());
    button.classList.toggle("quiet-button", !wanted());
    button.classList.toggle("secondary", wanted());
  }

  async function press() {
    if (wanted()) sessionStorage.removeItem(place.dataset.tell);
    else if ((await Notification.requestPermission()) === "granted") sessionStorage.setItem(place.dataset.tell, "wanted");
    showWanted();
  }

  function tellOfTheEnd() {
    if (!canTell) return;
    const tell = wanted();
    sessionStorage.removeItem(place.dataset.tell);
    showWanted();
    if (!tell) return;
    const { title, body, tell: tag } = place.dataset;
    const told = new Notification(title, { body, tag });
    told.addEventListener("click", () => {
      window.focus();
      told.close();
    });
  }

  if (card) {
    // stream.js has seen the same event before.
    document.addEventListener("visibilitychange", () => {
      if (every && !document.hidden && !listening()) ask();
      else wait();
    });
    window.addEventListener("pageshow", (event) => {
      if (event.persisted && every && !listening()) ask();
    });
    card.addEventListener("stream-state", (event) => {
      failures = 0;
      card.classList.remove("stale");
      show(event.detail);
      wait();
    });
    card.addEventListener("stream-lost", () => {
      if (every) ask();
    });
    if (canTell) {
      button.addEventListener("click", press);
      showWanted();
    }
    wait();
  }
}
