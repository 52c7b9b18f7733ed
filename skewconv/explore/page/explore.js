"use strict";
// All text that comes from data goes through textContent; only the figure, which the server drew, is markup.
const byId = (id) => document.getElementById(id);
const state = { models: null, chosen: null, length: 0, longest: 1, answer: null, busy: false, again: false, next: null, end: 0 };

function element(tag, { text, ...properties } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style") Object.assign(made.style, value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

async function ask(path, options) {
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `status ${response.status}`);
  return answer;
}

const down = (value, digits = 3) => (Math.floor(value * 10 ** digits) / 10 ** digits).toFixed(digits);
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const complain = (error) => { byId("note").textContent = error.message; byId("note").className = "reading error"; };

async function loadImages(start = 0) {
  const label = byId("label").value;
  const found = await ask(`api/images?start=${start}${label === "" ? "" : `&label=${label}`}`);
  if (start === 0) byId("thumbnails").replaceChildren();
  for (const image of found.images) {
    const button = element("button", { type: "button", title: `test image ${image.index}: ${image.label}`, "aria-pressed": "false" },
      element("img", { src: image.picture, alt: `test image ${image.index}, ${image.label}` }));
    button.dataset.index = image.index;
    button.addEventListener("click", () => choose({ index: image.index }));
    byId("thumbnails").append(button);
  }
  state.next = found.next;
  byId("more").hidden = found.next === null;
  return found;
}

function choose(image) {
  state.chosen = image;
  state.length = 0;
  state.longest = 0;
  byId("note").textContent = image.note || "";
  byId("note").className = "reading";
  for (const button of byId("thumbnails").children) button.setAttribute("aria-pressed", String(Number(button.dataset.index) === image.index));
  refresh();
}

// One question at a time, and always the newest: what was asked on the way is left out.
async function refresh() {
  if (state.busy) { state.again = true; awaitVerdicts(); return; }
  state.busy = true;
  document.body.dataset.busy = "true";
  try {
    do {
      state.again = false;
      const { note, ...image } = state.chosen;
      awaitVerdicts();
      show(await ask("api/look", { method: "POST", body: JSON.stringify({ ...image, length: state.length }) }));
    } while (state.again);
  } catch (error) { complain(error); }
  state.busy = false;
  document.body.dataset.busy = "false";
}

// The last sentence speaks of the last length: it is not left beside the new one.
function awaitVerdicts() {
  for (const box of document.querySelectorAll(".verdict")) {
    box.className = "verdict awaited";
    box.querySelector("span").textContent = `: attacking at length ${state.length.toFixed(3)} …`;
  }
}

function show(answer) {
  state.answer = answer;
  if (!state.longest) {
    // Far enough beyond the certified zone to see attacks succeed.
    const radii = answer.models.map((model) => model.radius || 0);
    state.longest = Math.max(0.1, 4 * Math.max(...radii));
    byId("length").value = 0;
  }
  byId("models").replaceChildren(...answer.models.map(modelCard));
  byId("zones").replaceChildren(...answer.models.map(zone));
  const certified = answer.models.filter((model) => model.radius !== null);
  const radii = certified.map((model) => (certified.length > 1 ? `${model.name} ${down(model.radius)}` : down(model.radius)));
  byId("zone-text").textContent = radii.length ? `Green: the certified radius, ${radii.join(", ")}. The narrow mark: the shortest change found so far that alters the class.` : "No model here can be certified.";
  byId("json-text").textContent = JSON.stringify(answer, (key, value) => (typeof value === "string" && value.startsWith("data:") ? `${value.slice(0, 40)}…` : value), 2);
  URL.revokeObjectURL(byId("download").href);
  byId("download").href = URL.createObjectURL(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }));
  document.body.dataset.shown = answer.length;
  writeLength();
}

function zone(model, number) {
  const place = (value) => `${Math.min(100, (100 * value) / state.longest)}%`;
  const bar = element("div", { className: "zone", title: model.name });
  bar.append(element("i", { style: { width: place(model.radius || 0) } }));
  if (model.nearest_attack !== null) bar.append(element("b", { style: { left: `min(${place(model.nearest_attack)}, 100% - 3px)` } }));
  return bar;
}

function modelCard(model) {
  const image = state.answer.image;
  const attack = model.attack;
  const card = element("article", { className: "model" }, element("h2", { text: model.name }));
  if (model.refusal) card.append(element("p", { className: "refusal", text: `This model cannot be certified, because ${model.refusal}` }));
  const picture = (source, caption) => element("div", {}, element("img", { src: source, alt: caption }), element("span", { text: caption }));
  const magnified = attack.magnified === null ? "no difference" : `difference × ${attack.magnified < 10 ? attack.magnified.toPrecision(2) : Math.round(attack.magnified)}`;
  card.append(element("div", { className: "pictures" }, picture(image.picture, image.label === null ? "your picture" : `is ${image.label}`),
    picture(attack.picture, `moved by ${attack.distance.toFixed(3)}`), picture(attack.difference, magnified)));
  card.append(verdict(model, attack));
  card.append(numbers(model));
  const columns = element("div", { className: "columns" }, logits(model));
  if (model.decided_by) columns.append(rivals(model));
  card.append(columns);
  return card;
}

function verdict(model, attack) {
  const inside = model.radius !== null && state.answer.length <= model.radius;
  const kind = attack.changed ? "broken" : inside ? "safe" : "open";
  const said = attack.changed ? `: an attack of this length makes it ${attack.prediction}.`
    : inside ? ": inside the certified radius, no attack can change it."
    : model.radius === null ? ": not changed by this attack, and nothing is proven." : ": beyond the certified radius, not changed by this attack.";
  const was = model.right === null ? "" : model.right ? " (right)" : " (wrong)";
  const box = element("p", { className: `verdict ${kind}` }, element("strong", { text: model.prediction }), element("span", { text: was + said }));
  box.dataset.changed = attack.changed;
  return box;
}

function numbers(model) {
  const rows = [["certified radius", model.radius === null ? "none" : down(model.radius, 4)],
    ["nearest attack", model.nearest_attack === null ? "none yet" : model.nearest_attack.toFixed(4)],
    ["gap", model.gap === null ? "–" : model.gap.toFixed(4)], ["margin", model.margin.toFixed(3)],
    ["margin under attack", model.attack.margin.toFixed(3)],
    ["largest change", `${(255 * model.attack.largest_change).toFixed(1)}/255`]];
  const list = element("dl", { className: "numbers" }, ...rows.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))));
  const meaning = model.meaning ? `${model.meaning[0].toUpperCase()}${model.meaning.slice(1)}. Proven in ${model.arithmetic} arithmetic.` : "";
  // A small radius is all that the network says of a picture that shows none of its classes.
  const place = model.place ? ` The certified radius is ${model.place}.` : "";
  return element("div", {}, list, element("p", { className: "reading place", text: meaning + place }));
}

function logits(model) {
  const all = [...model.logits, ...model.attack.logits];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const width = (value) => `${(100 * (value - low)) / (high - low || 1)}%`;
  const bars = element("div", { className: "bars" });
  state.models.classes.forEach((name, number) => {
    const kind = name === model.attack.prediction && model.attack.changed ? "changed" : name === model.prediction ? "top" : "";
    bars.append(element("span", { className: `name ${kind}`, text: name, title: name }),
      element("span", { className: "meter" }, element("i", { style: { width: width(model.logits[number]) } }), element("i", { style: { width: width(model.attack.logits[number]) } })),
      element("span", { className: kind, text: model.attack.logits[number].toFixed(2) }));
  });
  return element("div", {}, element("h3", { text: "logits: before (grey), under attack (blue)" }), bars);
}

function rivals(model) {
  const others = Object.entries(model.radius_by_rival).filter(([name]) => name !== model.prediction).sort((one, other) => one[1] - other[1]);
  const most = Math.max(...others.map(([, radius]) => radius || 0)) || 1;
  const bars = element("div", { className: "bars" });
  for (const [name, radius] of others) {
    const decides = name === model.decided_by;
    bars.append(element("span", { className: `name ${decides ? "top" : ""}`, text: name, title: name }),
      element("span", { className: "meter" }, element("i", { className: `only ${decides ? "decides" : ""}`, style: { width: `${(100 * radius) / most}%` } })),
      element("span", { text: `${down(radius)}${decides ? " decides" : ""}` }));
  }
  return element("div", {}, element("h3", { text: "certified radius against each other class" }), bars);
}

function writeLength() {
  const levels = 255 * state.length;
  byId("length-text").textContent = state.length.toFixed(3) + (levels <= 255 ? ` (${levels.toFixed(1)}/255 in one value)` : "");
  const texts = (state.answer ? state.answer.models : []).map((model) => (model.certified_accuracy ? `${model.name}: ${percent(model.certified_accuracy.share)} of ${model.certified_accuracy.images.toLocaleString("en")} test images at length ${state.answer.length.toFixed(3)}` : `${model.name}: no certificates yet`));
  byId("set-text").textContent = texts.join("; ");
  const figure = byId("curve").querySelector("svg");
  if (!figure || !state.end) return;
  const [left, top, width, height] = figure.dataset.box.split(" ").map(Number);
  const line = byId("curve").querySelector(".cursor");
  line.hidden = state.length > state.end;
  Object.assign(line.style, { left: `${100 * (left + (width * state.length) / state.end)}%`, top: `${100 * top}%`, height: `${100 * height}%` });
}

async function loadCurve() {
  const found = await ask("api/curve");
  if (found.svg) {
    byId("curve").querySelector("svg")?.remove();
    byId("curve").insertAdjacentHTML("afterbegin", found.svg);
    state.end = found.end;
    writeLength();
  }
  if (found.awaited.length) setTimeout(() => loadCurve().catch(complain), 3000);
}

// One line while the models are prepared behind the page.
async function followProgress() {
  const { progress } = await ask("api/models");
  byId("wait").textContent = progress ? `${progress} …` : "";
  if (progress) setTimeout(() => followProgress().catch(complain), 500);
}

async function upload(file) {
  if (!file) return;
  try {
    if (file.size > 10e6) throw new Error("the file has more than 10 MB: make it smaller");
    const found = await ask("api/picture", { method: "POST", body: file });
    choose({ pixels: found.pixels, note: `your picture: ${found.note}; it is not stored` });
  } catch (error) { complain(error); }
}

async function start() {
  state.models = await ask("api/models");
  byId("title").textContent = state.models.models.join(" and ");
  state.models.classes.forEach((name, number) => byId("label").append(element("option", { value: number, text: name })));
  byId("label").addEventListener("change", () => loadImages().catch(complain));
  byId("more").addEventListener("click", () => loadImages(state.next).catch(complain));
  byId("length").addEventListener("input", () => { state.length = (state.longest * byId("length").value) / 1000; writeLength(); if (state.chosen) refresh(); });
  byId("file").addEventListener("change", () => upload(byId("file").files[0]));
  const drop = byId("drop");
  drop.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") byId("file").click(); });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.toggle("over", kind === "dragover"); });
  }
  document.addEventListener("drop", (event) => upload(event.dataTransfer.files[0]));
  followProgress().catch(complain);
  const { images, missing } = await loadImages();
  if (images.length) choose({ index: images[0].index });
  else byId("note").textContent = `${missing}. Or drop a picture of your own.`;
  await loadCurve();
}

start().catch(complain);
