"use strict";
// Everything that comes from the data set is set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const number = new Intl.NumberFormat("en").format;

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") element.className = value;
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// The sample behind a thumbnail, in a dialog.
const dialog = document.querySelector("dialog");
const quote = (text) => (/^[\w.\/:@%+,-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");
let command = "";

function open(sample, source) {
  const facts = dialog.querySelector("dl");
  const photo = dialog.querySelector(".photo");
  photo.src = source || "data:,";
  photo.hidden = !source;
  dialog.querySelector("h2").textContent = sample.label || sample.key;
  const given = data.given[sample.split] || sample.split;
  // A number in place of a key that a terminal or the command would take for something else.
  const key = /^-|\p{C}/u.test(sample.key) ? String(sample.index) : quote(sample.key);
  command = `python -m gpuload show ${quote(given)} ${key}`;
  const rows = [["Key", sample.key], ["Source", sample.source], ["Split", sample.split], ["Number", number(sample.index)],
    ["Size", `${sample.width} × ${sample.height} pixels, ${number(sample.bytes)} bytes`], ["Command", command]];
  facts.replaceChildren();
  for (const [name, text] of rows) {
    if (!text) continue;
    facts.append(make("dt", {}, name), make("dd", { class: name === "Source" ? "" : "mono" }, text));
  }
  dialog.querySelector(".copy").textContent = "Copy the command";
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const shot = event.target.closest(".shot");
  if (shot) open(JSON.parse(shot.dataset.sample), shot.querySelector("img")?.src);
  if (event.target === dialog || event.target.closest(".close")) dialog.close();
});
dialog.querySelector(".copy").addEventListener("click", async (event) => {
  try {
    await navigator.clipboard.writeText(command);
    event.target.textContent = "Copied";
  } catch {
    event.target.textContent = "Select it above to copy";
  }
});

// The tables of classes: searched, ordered, and shown in steps.
const STEP = 40;
for (const card of document.querySelectorAll("[data-table]")) {
  const table = data.tables[card.dataset.table];
  const list = card.querySelector(".classes");
  const search = card.querySelector(".search");
  const order = card.querySelector(".order");
  const missing = card.querySelector(".missing");
  const more = card.querySelector(".more");
  const rows = table.rows.map(([name, counts, examples]) => ({ name, counts, examples, total: counts.reduce((a, b) => a + b, 0) }));
  const most = Math.max(1, ...rows.map((row) => row.total));
  const orders = { most: (a, b) => b.total - a.total, least: (a, b) => a.total - b.total, name: (a, b) => a.name.localeCompare(b.name) };
  let shown = STEP;

  function row(found) {
    const track = make("span", { class: "track" });
    found.counts.forEach((count, split) => {
      const width = `--w:${((100 * count) / most).toFixed(2)}%;--series:var(--s${split % 6})`;
      if (count) track.append(make("i", { style: width }));
    });
    const numbers = data.splits.length > 1 ? found.counts.map((count, split) => `${data.splits[split]} ${number(count)}`).join(", ") : number(found.total);
    const strip = make("span", { class: "strip" });
    for (const [uri, sample] of found.examples) {
      const picture = make("img", { src: uri, alt: "" });
      const button = make("button", { type: "button", class: "shot", "aria-label": `${found.name}, ${sample.key}` }, make("span", { class: "frame" }, picture));
      button.dataset.sample = JSON.stringify(sample);
      strip.append(button);
    }
    const name = make("span", { class: "name", title: found.name }, found.name);
    return make("li", {}, name, make("span", {}, track, make("span", { class: "numbers" }, numbers)), strip);
  }

  function show() {
    const wanted = search.value.trim().toLowerCase();
    const found = rows.filter((entry) => entry.name.toLowerCase().includes(wanted) && (!missing?.checked || entry.counts.some((count) => !count)));
    found.sort(orders[order.value]);
    list.replaceChildren(...found.slice(0, shown).map(row));
    more.hidden = found.length <= shown;
    more.textContent = `Show more of ${number(found.length)}`;
    card.querySelector(".count").textContent = found.length === rows.length ? `${number(rows.length)} listed` : `${number(found.length)} of ${number(rows.length)} match`;
  }
  const restart = () => { shown = STEP; show(); };
  search.addEventListener("input", restart);
  order.addEventListener("change", restart);
  missing?.addEventListener("change", restart);
  more.addEventListener("click", () => { shown += 5 * STEP; show(); });
  show();
}

// Groups of duplicates beyond the first.
const moreGroups = document.querySelector(".more-groups");
if (moreGroups) {
  const groups = [...document.querySelectorAll(".group")];
  const show = (most) => groups.forEach((group, place) => { group.hidden = place >= most; });
  moreGroups.hidden = groups.length <= 12;
  moreGroups.textContent = `Show all ${number(groups.length)} groups`;
  moreGroups.addEventListener("click", () => { show(Infinity); moreGroups.hidden = true; });
  show(12);
}

// The section in view is marked in the navigation.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const section of document.querySelectorAll("section")) watch.observe(section);
