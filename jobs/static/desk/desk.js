"use strict";
// Conveniences only: every page works without this file.
{
  // "/" goes to the search box, unless somebody is writing.
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const at = event.target;
      if (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) return;
      const box = document.getElementById("desk-search");
      if (box) {
        event.preventDefault();
        box.focus();
        box.select();
      }
    }
    if (event.key === "Escape") {
      const nav = document.getElementById("desk-nav");
      if (nav) nav.classList.remove("open");
      const open = document.querySelector("details.menu[open]");
      if (open) {
        open.open = false;
        open.querySelector("summary").focus();
      }
    }
  });

  // One menu at a time; a click elsewhere closes it.
  document.addEventListener("click", (event) => {
    document.querySelectorAll("details.menu[open]").forEach((menu) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    const toggle = event.target.closest("[data-nav]");
    if (toggle) {
      event.preventDefault();
      document.getElementById("desk-nav").classList.toggle("open", toggle.dataset.nav === "open");
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy);
  });

  function copyText(button) {
    const done = () => {
      button.classList.add("done");
      const said = document.getElementById("desk-said");
      if (said) said.textContent = button.dataset.done || "";
      setTimeout(() => button.classList.remove("done"), 1600);
    };
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(button.dataset.copy).then(done, () => {});
      return;
    }
    const area = document.createElement("textarea");
    area.value = button.dataset.copy;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    if (document.execCommand("copy")) done();
    area.remove();
  }

  // A form that must not be sent twice by a double click.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-once]")) return;
    if (form.dataset.sent) {
      event.preventDefault();
      return;
    }
    form.dataset.sent = "1";
    window.addEventListener("pageshow", () => delete form.dataset.sent, { once: true });
  });

  // A picture that can't be had leaves its checkerboard.
  document.addEventListener("error", (event) => {
    if (event.target instanceof HTMLImageElement && event.target.closest(".thumb")) event.target.remove();
  }, true);

  // On a narrow screen the chosen tab may lie outside the row.
  document.querySelectorAll(".tabs [aria-current]").forEach((tab) => {
    const row = tab.closest(".tabs");
    if (row.scrollWidth > row.clientWidth) tab.scrollIntoView({ block: "nearest", inline: "center" });
  });
}
