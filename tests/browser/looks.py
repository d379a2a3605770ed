"""What can be seen to be wrong with a page without a person's eye: it is wider than its window, text is cut off without a way to
read it, neighbours lie on each other, words stand there in another language. `wrong` is one line a finding."""

from __future__ import annotations

from collections.abc import Collection

from playwright.sync_api import Page

# Names that are the same in all languages, and what stands in the place of a language's own name.
NAMES = (
    "Polza", "Fal", "OpenRouter", "Openrouter", "GigaChat", "Gigachat", "English", "Inter", "CSV", "XLSX", "ZIP", "API", "HTTP",
    "HTTPS", "URL", "JSON", "UTC", "GMT", "RUB", "USD", "EUR", "PNG", "JPEG", "WEBP", "GIF", "GET", "Markdown",
)  # fmt: skip

_WRONG = r"""
([names, foreign, given]) => {
  const found = [];
  const say = (what, one, more) => found.push(`${what}: ${where(one)}${more ? ` “${more}”` : ""}`);
  const where = (one) => {
    const name = one.tagName.toLowerCase() + (one.id ? `#${one.id}` : "") + [...one.classList].map((c) => `.${c}`).join("");
    return one.parentElement ? `${one.parentElement.className ? "." + [...one.parentElement.classList].join(".") + " > " : ""}${name}` : name;
  };
  const shown = (one) => one.checkVisibility({visibilityProperty: true, opacityProperty: true}) && one.getClientRects().length > 0;
  const hiddenAway = (one) => one.closest(".visually-hidden, .skip-to-content-link, [hidden], .user-name");

  // Wider than the window.
  const over = document.documentElement.scrollWidth - window.innerWidth;
  if (over > 0) say(`${over} px wider than the window`, document.documentElement);

  for (const one of document.body.querySelectorAll("*")) {
    if (!shown(one) || hiddenAway(one) || one.closest("svg")) continue;
    const style = getComputedStyle(one);
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());

    // Cut off: text that runs on beyond its box and can't be scrolled to, nor read elsewhere.
    const cuts = /hidden|clip/.test(style.overflowX);
    if (cuts && !one.matches(".breadcrumbs") && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0 && one.textContent.trim()) {
      const told = one.closest("[title], a[href], tr, li, details") || one.querySelector("[title]");
      if (style.textOverflow !== "ellipsis") say("cut text", one, one.textContent.trim().slice(0, 40));
      else if (!told) say("shortened, and nowhere whole", one, one.textContent.trim().slice(0, 40));
    }
    if (/hidden|clip/.test(style.overflowY) && own && one.scrollHeight > one.clientHeight + 3 && style.webkitLineClamp === "none"
        && one.clientHeight > 0) say("text cut at the bottom", one, one.textContent.trim().slice(0, 40));
    // Squeezed: a word a line or less.
    if (own && one.clientWidth > 0 && one.clientWidth < 30 && one.clientHeight > 60) say("squeezed", one, one.textContent.trim().slice(0, 40));
    // Running out of its own box, where that has an edge to be seen.
    if (one.matches(".button, button, .pill, .badge, .chip, .stat, td, th, .card-head, dd, dt, summary") && style.overflowX === "visible"
        && one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 2 && !one.querySelector(".menu-body, .visually-hidden"))
      say(`${one.scrollWidth - one.clientWidth} px beyond its box`, one, one.textContent.trim().slice(0, 40));
  }

  // Neighbours that lie on each other.
  for (const row of document.querySelectorAll(".card, .card-head, .card-body, .stats, .stat, .row, .title-row, .title-end, .topbar, .filters, .stack, .halves, .facts, .kv, tr, .notice, .nav-link, .tabs")) {
    if (!shown(row)) continue;
    const boxes = [...row.children].filter((one) => shown(one) && !hiddenAway(one) && !/absolute|fixed/.test(getComputedStyle(one).position)
      && getComputedStyle(one).display !== "contents").map((one) => [one, one.getBoundingClientRect()]);
    for (let a = 0; a < boxes.length; a++) for (let b = a + 1; b < Math.min(boxes.length, a + 4); b++) {
      const [x, y] = [boxes[a][1], boxes[b][1]];
      const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left), high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
      if (wide > 2 && high > 2) say("lies on its neighbour", boxes[a][0], boxes[b][0].textContent.trim().slice(0, 40));
    }
  }

  // Words of another language.
  if (foreign) {
    const apart = "[lang=en], bdi, code, pre, kbd, .ltr, .mono, script, style, textarea, [dir=auto], time[dir], .prompt, [translate=no]";
    const known = new Set(names.map((name) => name.toLowerCase()));
    // Without what people and providers have written, ids, and names of settings.
    const escaped = given.map((one) => one.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"));
    const data = new RegExp([...escaped, "\\b[A-Z]+-\\d+\\b", "gen_\\w+", "\\b[A-Z]+(?:_[A-Z]+)+\\b"].join("|"), "gi");
    const strange = (text) => (text.replace(data, " ").match(/[A-Za-z]{3,}/g) || []).some((word) => !known.has(word.toLowerCase()));
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      const at = node.parentElement;
      if (!at.closest(apart) && at.checkVisibility({visibilityProperty: true}) && strange(node.textContent)) say("not translated", at, node.textContent.trim().slice(0, 60));
    }
    for (const name of ["title", "aria-label", "placeholder", "alt"])
      for (const one of document.querySelectorAll(`[${name}]`))
        if (!one.closest(apart) && one.checkVisibility({visibilityProperty: true}) && strange(one.getAttribute(name))) say(`${name} not translated`, one, one.getAttribute(name).slice(0, 60));
    if (strange(document.title.split(" · ").slice(-1)[0])) say("title not translated", document.documentElement, document.title);
  }
  return [...new Set(found)];
}
"""


def wrong(page: Page, *, foreign: bool, given: Collection[str] = ()) -> list[str]:
    """`foreign`: the page is to be in another language than English, in another script. `given`: what people and providers
    have written, which stays as it is."""
    by_length = sorted({one for one in given if one}, key=len, reverse=True)
    found: list[str] = page.evaluate(_WRONG, [list(NAMES), foreign, by_length])
    return found
