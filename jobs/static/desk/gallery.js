"use strict";
// Choosing many, and the lightbox. Without it a picture leads to its job, and the boxes and buttons work all the same.
{
  const form = document.getElementById("gallery-form");
  const dialog = document.getElementById("lightbox");

  // --- choosing ---

  const boxes = () => [...form.querySelectorAll(".gallery-check input")];
  let last = null;

  function showChosen() {
    const all = boxes();
    const chosen = all.filter((one) => one.checked).length;
    form.querySelector("[data-chosen-count]").textContent = chosen;
    const every = form.querySelector("[data-all]");
    every.checked = all.length > 0 && chosen === all.length;
    every.indeterminate = chosen > 0 && chosen < all.length;
  }

  // From the box pressed last to this one, with Shift held.
  function fill(to, checked) {
    const all = boxes();
    const [a, b] = [all.indexOf(last), all.indexOf(to)].sort((x, y) => x - y);
    if (a >= 0) for (const one of all.slice(a, b + 1)) one.checked = checked;
  }

  // --- the lightbox ---

  const tiles = () => [...document.querySelectorAll(".gallery-tile")];
  let at = -1;

  function show(index) {
    const all = tiles();
    if (index < 0 || index >= all.length) return;
    at = index;
    const tile = all[at];
    const link = tile.querySelector("[data-open]");
    const picture = dialog.querySelector("[data-picture]");
    if (link.dataset.full) {
      const image = new Image();
      image.alt = tile.querySelector("img").alt;
      image.src = link.dataset.full;
      picture.replaceChildren(image);
    } else {
      picture.replaceChildren(tile.querySelector(".gallery-more .prompt").cloneNode(true));
    }
    const side = tile.querySelector(".gallery-more").cloneNode(true);
    side.hidden = false;
    dialog.querySelector("[data-side]").replaceChildren(...side.childNodes);
    dialog.querySelector("[data-place]").textContent = `${at + 1} / ${all.length}`;
    for (const step of dialog.querySelectorAll("[data-step]")) {
      const next = at + Number(step.dataset.step);
      step.disabled = next < 0 || next >= all.length;
    }
    if (!dialog.open) dialog.showModal();
  }

  async function rate(button) {
    const group = button.closest("[data-rate]");
    const body = new FormData();
    body.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    body.set("rating", button.dataset.rating);
    const place = tiles()[at];
    let kept = false;
    try {
      kept = (await fetch(group.dataset.rate, { method: "POST", body, redirect: "manual" })).type === "opaqueredirect";
    } catch {
      // Said below.
    }
    if (!kept) {
      document.getElementById("desk-said").textContent = group.dataset.failed;
      group.insertAdjacentText("beforeend", group.dataset.failed);
      return;
    }
    // In the lightbox and in the tile that it was made from.
    for (const whole of [dialog, place]) {
      for (const one of whole.querySelectorAll("[data-rating]")) {
        one.setAttribute("aria-pressed", String(one.dataset.rating === button.dataset.rating));
      }
    }
    const mark = document.createElement("span");
    mark.className = `gallery-mark ink ${[...button.classList].find((name) => name.startsWith("tone-"))}`;
    mark.append(button.firstElementChild.cloneNode(true));
    place.querySelector(".gallery-mark")?.remove();
    place.querySelector(".gallery-foot").append(mark);
  }

  if (form) {
    form.addEventListener("change", (event) => {
      if (event.target.matches("[data-all]")) for (const one of boxes()) one.checked = event.target.checked;
      showChosen();
    });
    form.addEventListener("click", (event) => {
      const box = event.target.closest(".gallery-check input");
      if (box) {
        if (event.shiftKey && last) fill(box, box.checked);
        last = box;
        showChosen();
        return;
      }
      const link = event.target.closest("[data-open]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      show(tiles().indexOf(link.closest(".gallery-tile")));
    });
    dialog.addEventListener("click", (event) => {
      const step = event.target.closest("[data-step]");
      if (step) show(at + Number(step.dataset.step));
      else if (event.target.closest("[data-close]") || event.target === dialog) dialog.close();
      else if (event.target.closest("[data-rating]")) rate(event.target.closest("[data-rating]"));
    });
    dialog.addEventListener("close", () => tiles()[at]?.querySelector("[data-open]").focus());
    dialog.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const forward = document.documentElement.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
      const digit = /^Digit([0-9])$/.exec(event.code)?.[1] ?? event.key;
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") show(at + (event.key === forward ? 1 : -1));
      else if (/^[1-3]$/.test(digit)) dialog.querySelector(`[data-rate-key="${digit}"]`)?.click();
      else return;
      event.preventDefault();
    });
    window.addEventListener("pageshow", showChosen); // a browser may have restored what was chosen
    showChosen();
  }
}
