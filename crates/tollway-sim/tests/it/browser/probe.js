// Measures the page as it is shown, and writes what was found into it.
addEventListener("load", () => {
  const box = (node) => node.getBoundingClientRect();
  const isShown = (node) => box(node).width > 0 && box(node).height > 0;
  const found = { overlaps: [], outside: [], labels: 0, smallest: Infinity };

  for (const svg of document.querySelectorAll("svg")) {
    const frame = box(svg);
    const labels = [...svg.querySelectorAll("text")].filter(isShown);
    found.labels += labels.length;
    for (const label of labels) {
      const { left, right, top, bottom } = box(label);
      if (left < frame.left - 1 || right > frame.right + 1
        || top < frame.top - 1 || bottom > frame.bottom + 1) {
        found.outside.push(label.textContent);
      }
      const size = parseFloat(getComputedStyle(label).fontSize) * Math.abs(label.getScreenCTM().a);
      found.smallest = Math.min(found.smallest, size);
    }
    labels.forEach((one, index) => labels.slice(index + 1).forEach((other) => {
      const [a, b] = [box(one), box(other)];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 2) found.overlaps.push(`${one.textContent} / ${other.textContent}`);
    }));
  }
  for (const node of document.querySelectorAll("h1, h2, h3, p, th, td, li, footer")) {
    if (!isShown(node) || !node.textContent.trim()) continue;
    found.smallest = Math.min(found.smallest, parseFloat(getComputedStyle(node).fontSize));
    if (box(node).right > innerWidth + 1) found.outside.push(node.textContent.trim());
  }

  const page = document.documentElement.scrollWidth;
  const told = { ...found, page, width: innerWidth, complaints };
  const note = document.createElement("pre");
  note.id = "probe";
  note.textContent = JSON.stringify(told);
  document.body.append(note);
});
