// Collects what the page complains about, from before its first line on.
window.complaints = [];
addEventListener("error", (event) => complaints.push(String(event.message || event.target)), true);
for (const kind of ["error", "warn"]) {
  const said = console[kind];
  console[kind] = (...words) => {
    complaints.push(words.join(" "));
    said.apply(console, words);
  };
}
