// Runs before the first paint, so that a page never flashes in the wrong colours. Not a module: modules wait.
{
  let kept = null;
  try {
    kept = localStorage.getItem("scalescope.theme");
  } catch {
    // Storage may be forbidden; then the system's choice holds.
  }
  const dark = kept === null ? matchMedia("(prefers-color-scheme: dark)").matches : kept === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
