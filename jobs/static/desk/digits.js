"use strict";
// Browsers let only Latin digits into number fields; whoever types Persian or Arabic ones means the same.
{
  const latin = (text) =>
    text
      .replace(/[\u06f0-\u06f9]/g, (digit) => String(digit.charCodeAt(0) - 0x06f0))
      .replace(/[\u0660-\u0669]/g, (digit) => String(digit.charCodeAt(0) - 0x0660))
      .replace(/\u066b/g, ".")
      .replace(/\u066c/g, "");

  document.addEventListener("beforeinput", (event) => {
    const field = event.target;
    if (!(field instanceof HTMLInputElement) || field.type !== "number") return;
    const given = event.data ?? event.dataTransfer?.getData("text/plain") ?? "";
    const meant = latin(given);
    if (meant === given) return;
    event.preventDefault();
    document.execCommand("insertText", false, meant);
  });
}
