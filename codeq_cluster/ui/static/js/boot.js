// Loads the page. A module that did not arrive fails everything that imports it until the page is loaded again.

const AGAIN_MS = 1000;
const TRIES_MAX = 5;
const TRIES = "codeq-loads"; // In the storage of this tab: how often the page has failed to load.

try {
  await import("./main.js");
  sessionStorage.removeItem(TRIES);
} catch (failure) {
  const tried = Number(sessionStorage.getItem(TRIES)) + 1;
  sessionStorage.setItem(TRIES, tried);
  const told = document.createElement("p");
  told.className = "empty bad";
  const again = document.createElement("a");
  again.href = location.href;
  again.textContent = "Load it again";
  told.append(`This page could not be loaded: ${failure.message}. `, again);
  document.getElementById("main").replaceChildren(told);
  if (tried < TRIES_MAX) setTimeout(() => location.reload(), AGAIN_MS);
}
