// The chosen appearance, applied before anything is drawn. Unusual: a classic script, since modules run too late for that.
"use strict";
try {
  const theme = JSON.parse(localStorage.getItem("openk3.settings") || "{}").theme;
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No storage, or something else in it: the system's appearance.
}
