"use strict";
// The line below a form for new jobs follows the chosen tenant and target. Without this file each option still tells its route.
document.querySelectorAll("[data-route-line]").forEach((line) => {
  const { tenant, target } = line.closest("form").elements;
  const show = () => {
    const [told] = (target.value ? target : tenant).selectedOptions;
    if (!told) return;
    line.querySelectorAll("[data-line]").forEach((part) => {
      part.textContent = told.dataset[part.dataset.line] || "";
      part.parentElement.hidden = !part.textContent; // with the dot before it
    });
    line.classList.toggle("tone-amber", Boolean(told.dataset.trouble));
    line.classList.toggle("tone-grey", !told.dataset.trouble);
  };
  tenant.addEventListener("change", show);
  target.addEventListener("change", show);
  show(); // a browser may have restored another choice
});
