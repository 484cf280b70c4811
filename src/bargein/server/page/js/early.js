// Sets the theme chosen on this machine, before the first paint.
{
  const chosen = localStorage.getItem("bargein.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
