"use strict";
// On a confirmation: what is usually written is pressed instead, and an id copied elsewhere is pasted by a press. Without this
// file the fields are typed into as ever, and nothing of this is shown.
{
  // Whoever came by the keyboard goes on with Tab in the form, not with the whole menu before it.
  if (document.querySelector("form.confirm") && document.activeElement === document.body) {
    document.getElementById("content-start")?.focus({ preventScroll: true });
  }

  const canPaste = window.isSecureContext && Boolean(navigator.clipboard?.readText);
  document.querySelectorAll("[data-ready]").forEach((group) => {
    const field = document.getElementById(group.dataset.ready);
    const chips = [...group.querySelectorAll("[data-fill]")];
    const paste = group.querySelector("[data-paste]");
    if (!field) return;
    if (paste) paste.hidden = !canPaste;
    group.hidden = !chips.length && !canPaste;

    const show = () => {
      for (const chip of chips) chip.setAttribute("aria-pressed", field.value.includes(chip.dataset.fill));
    };
    const say = () => {
      const said = document.getElementById("desk-said");
      if (said) said.textContent = `${group.dataset.done}: ${field.value}`;
    };
    // A second one is added; one that is there already is taken out again. What somebody typed stays.
    function press(text) {
      const apart = field.tagName === "TEXTAREA" ? "\n" : "; ";
      const parts = field.value.split(apart).map((part) => part.trim()).filter(Boolean);
      const kept = parts.filter((part) => part !== text);
      field.value = (kept.length < parts.length ? kept : [...parts, text]).join(apart);
      field.dispatchEvent(new Event("input", { bubbles: true }));
      say();
    }

    group.addEventListener("click", async (event) => {
      const chip = event.target.closest("[data-fill]");
      if (chip) press(chip.dataset.fill);
      if (event.target.closest("[data-paste]")) {
        const text = await navigator.clipboard.readText().catch(() => "");
        if (!text.trim()) {
          field.focus(); // the browser would not: it is pasted by hand
          return;
        }
        field.value = text.trim().slice(0, field.maxLength > 0 ? field.maxLength : undefined);
        field.dispatchEvent(new Event("input", { bubbles: true }));
        say();
      }
    });
    field.addEventListener("input", show);
    show();
  });
}
