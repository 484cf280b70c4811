// Before the first paint: the theme that was chosen on this machine, if one was.
{
  const chosen = localStorage.getItem("bargein.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
