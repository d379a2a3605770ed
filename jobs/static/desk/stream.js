"use strict";
// Listens where the page names a stream (data-stream) and tells the element: "stream-state" with each state, "stream-lost"
// where nothing comes. `data-listening` on it: "first" until it is known whether anything comes, "yes", or "no". A page asks
// by itself only at "no". Nothing is listened to in a hidden tab: a browser has few connections to a server.
{
  const place = document.querySelector("[data-stream]:not([data-stream=''])");
  const FIRST_MS = 5_000;
  // The server may take that long to come back: it spreads its clients over ten seconds.
  const BACK_MS = 20_000;
  const SILENCE_MS = 40_000; // a ping comes every 15 s
  const AGAIN_MS = 60_000;
  let source = null;
  let timer = 0;
  let notBefore = 0;
  let over = false;

  const within = (ms, then) => {
    clearTimeout(timer);
    timer = setTimeout(then, ms);
  };
  const tell = (name, detail) => place.dispatchEvent(new CustomEvent(name, { detail }));

  function open() {
    if (source || over || document.hidden) return;
    const wait = notBefore - performance.now();
    if (wait > 0) {
      within(wait, open);
      return;
    }
    if (!notBefore) place.dataset.listening = "first";
    source = new EventSource(place.dataset.stream);
    within(FIRST_MS, lose);
    let heard = false;
    let broken = false;
    const hear = () => {
      heard = true;
      broken = false;
      place.dataset.listening = "yes";
      within(SILENCE_MS, lose);
    };
    source.addEventListener("message", (event) => {
      hear();
      notBefore = 0;
      tell("stream-state", JSON.parse(event.data));
    });
    source.addEventListener("ping", hear);
    source.addEventListener("end", () => {
      over = true;
      close();
    });
    source.addEventListener("error", () => {
      if (!heard || source.readyState === EventSource.CLOSED) lose();
      else if (!broken) {
        broken = true; // it connects again by itself, and may fail at that several times
        within(BACK_MS, lose);
      }
    });
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function lose() {
    close();
    notBefore = performance.now() + AGAIN_MS;
    place.dataset.listening = "no";
    within(AGAIN_MS, open);
    tell("stream-lost");
  }

  if (place) {
    place.dataset.listening = "first";
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) close();
      else open();
    });
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => {
      if (event.persisted) open();
    });
    open();
  }
}
