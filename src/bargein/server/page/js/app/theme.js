// Light or dark: the system's choice, until somebody chooses here.

const KEY = "bargein.theme";

export function createTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  const chosen = () => document.documentElement.dataset.theme;
  const current = () => chosen() ?? (system.matches ? "dark" : "light");
  const tell = () => listeners.forEach((listener) => listener(current()));
  system.addEventListener("change", tell);
  return {
    turn() {
      const next = current() === "dark" ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      localStorage.setItem(KEY, next);
      tell();
    },
    onChange(listener) {
      listeners.push(listener);
      listener(current());
    },
  };
}
