"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const charts = JSON.parse(byId("charts").textContent);

  // A colour is written var(--name) in the figures: here it becomes what the style sheet says at the moment.
  const resolved = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolved(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, style)]));
  };
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const chart of charts) {
      const options = { displayModeBar: false, responsive: true };
      Plotly.react(byId(chart.id), resolved(chart.data, style), resolved(chart.layout, style), options);
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const tools = byId("tools");
  if (!tools) return;
  tools.hidden = false;
  const runs = [...document.querySelectorAll("details.run")];
  const texts = runs.map((run) => run.textContent.toLowerCase());
  const filter = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = byId("kind").value;
    const policy = byId("policy").value;
    let count = 0;
    runs.forEach((run, index) => {
      const fits =
        words.every((word) => texts[index].includes(word)) &&
        (!kind || run.dataset.kinds.split(" ").includes(kind)) &&
        (!policy || run.dataset.policy === policy);
      run.hidden = !fits;
      count += fits;
    });
    byId("count").textContent = `${count} of ${runs.length} shown`;
  };
  for (const id of ["filter", "kind", "policy"]) byId(id).addEventListener("input", filter);
  const toggle = (open) => () => runs.forEach((run) => { if (!run.hidden) run.open = open; });
  byId("open").addEventListener("click", toggle(true));
  byId("close").addEventListener("click", toggle(false));
  filter();
})();
