// Runs before the first paint, so that a chosen theme does not flash.
(() => {
  try {
    const theme = localStorage.getItem('runguard.theme');
    if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be switched off; the system's theme does.
  }
})();
