"use strict";
// The desk's keys, on the list of cases, on the page of one and on a job's (its rating); and the list's choosing of rows. All of it can be done with the
// mouse or Tab as well. Single keys can be turned off in the dialog of "?" (WCAG 2.1.4); they do nothing in fields, in dialogs
// and with Ctrl, Alt or Meta.
{
  const hint = document.querySelector("[data-keys]");
  const dialog = document.getElementById("keys-dialog");
  const onList = hint?.dataset.keys === "list";
  const OFF = "desk-keys-off";
  const PLACE = "desk-keys-place";
  const store = (where, name, value) => {
    try {
      if (value === undefined) return where.getItem(name);
      if (value === null) where.removeItem(name);
      else where.setItem(name, value);
    } catch {
      // A browser that keeps nothing: the keys are on.
    }
    return null;
  };
  const isOff = () => store(localStorage, OFF) === "1";

  // --- rows of the list ---

  const rows = () => [...document.querySelectorAll("#result_list tbody tr")];
  const box = (row) => row.querySelector(".action-select");
  const link = (row) => row.querySelector("th a, td a");
  const rowAt = () => document.activeElement?.closest("#result_list tbody tr") ?? null;
  const boxes = () => rows().map(box).filter(Boolean);

  function showChosen() {
    const all = boxes();
    const chosen = all.filter((one) => one.checked).length;
    for (const place of document.querySelectorAll("[data-chosen]")) place.textContent = chosen;
    const toggle = document.getElementById("action-toggle");
    if (!toggle) return;
    toggle.checked = all.length > 0 && chosen === all.length;
    toggle.indeterminate = chosen > 0 && chosen < all.length;
  }

  function goToRow(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(rowAt());
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1);
    link(all[next])?.focus();
    all[next].scrollIntoView({ block: "nearest" });
  }

  // The chosen ones; without any, the one somebody is at.
  function doWithRows(button) {
    if (!boxes().some((one) => one.checked)) {
      const row = rowAt();
      if (!row || !box(row)) return;
      box(row).checked = true;
      showChosen();
    }
    store(sessionStorage, PLACE, String(Math.max(rows().indexOf(rowAt()), 0)));
    button.click();
  }

  // --- steps of a case ---

  const steps = () => [...document.querySelectorAll("[data-step]")];

  function goToStep(step) {
    const all = steps();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    all[at < 0 ? 0 : Math.min(Math.max(at + step, 0), all.length - 1)].focus();
  }

  // --- keys ---

  // By the letter, else by the key's place: on a Russian or Persian keyboard "j" is the same key.
  function letter(event) {
    if (event.key === "؟") return "?";
    if (event.key.length > 1 || event.key.charCodeAt(0) < 128) return event.key;
    const digit = /^Digit([0-9])$/.exec(event.code); // a Persian keyboard writes its own digits
    if (digit) return digit[1];
    return /^Key[A-Z]$/.test(event.code) ? event.code.slice(3).toLowerCase() : event.key;
  }

  function writing(at) {
    if (!(at instanceof Element)) return false;
    if (at.isContentEditable || at.closest("dialog")) return true;
    return at.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=submit], [type=button])");
  }

  function press(key) {
    const move = { j: 1, k: -1 }[key] ?? 0;
    const arrow = { ArrowDown: 1, ArrowUp: -1 }[key] ?? 0;
    const atStep = document.activeElement?.matches("[data-step]");
    if (move || (arrow && (onList ? rowAt() : atStep))) {
      (onList ? goToRow : goToStep)(move || arrow);
      return true;
    }
    if (key === "?") {
      dialog.showModal();
      return true;
    }
    if (onList && key === "x") {
      const one = rowAt() && box(rowAt());
      if (!one) return false;
      one.checked = !one.checked;
      showChosen();
      return true;
    }
    if (!onList && key === "m") {
      goToStep(0);
      return true;
    }
    const target = /^[a-z0-3]$/.test(key) && document.querySelector(`[data-key="${key}"]`);
    if (!target) return false;
    if (onList) doWithRows(target);
    else target.click();
    return true;
  }

  if (hint && dialog) {
    const toggle = dialog.querySelector("[data-keys-switch]");
    const show = () => {
      toggle.checked = !isOff();
      hint.classList.toggle("keys-off", isOff());
      hint.hidden = false;
    };
    toggle.addEventListener("change", () => {
      store(localStorage, OFF, toggle.checked ? null : "1");
      show();
    });
    document.addEventListener("click", (event) => {
      if (event.target.closest("[data-keys-open]")) dialog.showModal();
      if (event.target.closest("[data-keys-close]") || event.target === dialog) dialog.close();
    });
    document.addEventListener("keydown", (event) => {
      if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (dialog.open || isOff() || writing(event.target)) return;
      if (event.repeat && !["j", "k", "ArrowDown", "ArrowUp"].includes(letter(event))) return;
      if (press(letter(event))) event.preventDefault();
    });
    show();
  }

  if (onList) {
    const list = document.getElementById("result_list");
    list?.addEventListener("change", (event) => {
      if (event.target.id === "action-toggle") for (const one of boxes()) one.checked = event.target.checked;
      showChosen();
    });
    // A browser may have restored what was chosen.
    window.addEventListener("pageshow", showChosen);
    showChosen();
    // After a key's work the list goes on where it was.
    list?.addEventListener("focusin", () => {
      if (rowAt()) store(sessionStorage, PLACE, String(rows().indexOf(rowAt())));
    });
    const place = store(sessionStorage, PLACE);
    store(sessionStorage, PLACE, null);
    if (place !== null && !isOff() && document.activeElement === document.body) {
      const all = rows();
      const row = all[Math.min(Number(place) || 0, all.length - 1)];
      if (row) link(row)?.focus({ preventScroll: true });
    }
  }
}
