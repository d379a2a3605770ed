"use strict";
// Counts down to the end of a trouble at the sandbox, and has the page read again once it is over.
{
  const words = (seconds, digits) =>
    new Intl.NumberFormat(document.documentElement.lang || "en", {
      style: "unit", unit: "second", unitDisplay: "short", numberingSystem: digits,
    }).format(seconds);
  let lookedAt = "";
  setInterval(() => {
    for (const shown of document.querySelectorAll("[data-countdown]")) {
      const left = Math.ceil((Date.parse(shown.dateTime) - Date.now()) / 1000);
      if (left > 0) shown.textContent = words(left, shown.dataset.countdown);
      else if (left < 0 && lookedAt !== shown.dateTime) {
        lookedAt = shown.dateTime;
        document.querySelector("[data-reload]")?.click();
      }
    }
  }, 1000);
}
