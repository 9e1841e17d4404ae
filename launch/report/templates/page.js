"use strict";
// Draws the figures of the page, and draws them again when colours, view or paper change.
(function () {
  const { template, figures } = JSON.parse(document.getElementById("figures").textContent);
  const chosen = {};
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const config = { displaylogo: false, displayModeBar: false, responsive: true, doubleClick: "reset" };

  // Figures name the colours of the style sheet, var(--ink) for one: only the browser knows what they are now.
  function coloured(value, styles) {
    if (typeof value === "string") {
      return value.startsWith("var(--") ? styles.getPropertyValue(value.slice(4, -1)).trim() : value;
    }
    if (Array.isArray(value)) {
      return value.map((item) => coloured(item, styles));
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, styles)]));
    }
    return value;
  }

  function draw(name) {
    const holder = document.getElementById(name);
    const { data, layout } = figures[name][chosen[name] || 0];
    const styles = getComputedStyle(document.documentElement);
    const figure = coloured({ data: data, layout: { ...layout, template: template } }, styles);
    if (touch) {
      figure.layout.dragmode = false; // A finger on a figure scrolls the page.
    }
    holder.style.minHeight = figure.layout.height + "px";
    Plotly.react(holder, figure.data, figure.layout, config);
    if (holder.clientWidth !== holder._fullLayout.width) {
      Plotly.Plots.resize(holder); // Its box has another width than when it was drawn before.
    }
  }

  function drawAll() {
    Object.keys(figures).forEach(draw);
  }

  document.querySelectorAll("select[data-plot]").forEach((select) => {
    select.addEventListener("change", () => {
      chosen[select.dataset.plot] = Number(select.value);
      draw(select.dataset.plot);
    });
    select.value = "0";
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => {
    document.documentElement.classList.add("light");
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("light");
    drawAll();
  });
  drawAll();
  document.documentElement.dataset.drawn = "true"; // For those who wait for the page, such as its tests.
})();
