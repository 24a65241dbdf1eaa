// What the theme's script adds to a page: tables that scroll by the keyboard, too, and a name for each button's landmark.
const added = () => {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((each) => (each.tabIndex = 0));
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((each, number) => {
    each.setAttribute("aria-label", `Code ${each.parentElement.id.replace(/\D/g, "") || number}`);
  });
};
new MutationObserver(added).observe(document.body, { childList: true, subtree: true });
added();
