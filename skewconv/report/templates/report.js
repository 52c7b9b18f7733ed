"use strict";
// The cursor of the curve of certified accuracy: a slider, and the pointer over the figure, move the same line.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const slider = document.getElementById("cursor");
  const figure = document.getElementById("figure-certified-accuracy");
  if (!slider || !figure || !data.runs.length) return;
  const [left, top, width, height] = figure.dataset.box.split(" ").map(Number);
  const line = document.querySelector(".cursor");
  const steps = data.runs[0].shares.length - 1;
  slider.max = steps;
  const rows = data.runs.map((run) => {
    const item = document.createElement("li");
    const key = document.createElement("span");
    const text = document.createElement("span");
    key.className = "key";
    key.style.background = `var(--series-${run.series})`;
    item.append(key, text);
    document.getElementById("cursor-shares").append(item);
    return text;
  });
  function show(step) {
    const at = Math.max(0, Math.min(steps, Math.round(step)));
    const radius = (at / steps) * data.end;
    slider.value = at;
    line.hidden = false;
    Object.assign(line.style, { left: `${100 * (left + (width * at) / steps)}%`, top: `${100 * top}%`, height: `${100 * height}%` });
    document.getElementById("cursor-radius").textContent = `${radius.toFixed(3)} (${Math.round(255 * radius)}/255)`;
    data.runs.forEach((run, number) => {
      rows[number].textContent = `${run.name}: ${(100 * run.shares[at]).toFixed(1)}%`;
    });
  }
  slider.addEventListener("input", () => show(Number(slider.value)));
  const follow = (event) => {
    const box = figure.getBoundingClientRect();
    show((steps * ((event.clientX - box.left) / box.width - left)) / width);
  };
  figure.addEventListener("pointermove", follow);
  figure.addEventListener("pointerdown", follow);
  show((steps * (36 / 255)) / data.end);
  // Print shows what is folded away.
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
})();
