"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const axis = document.getElementById("axis");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const dashes = ["solid", "dash", "dot"];
  const colours = 10;
  const drawn = new Map();
  const hidden = new Map();

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (number) => style(`--c${number % colours}`);
  const dash = (number) => dashes[Math.floor(number / colours) % dashes.length];

  function faded(hex, alpha) {
    const part = (i) => parseInt(hex.slice(i, i + 2), 16);
    return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
  }

  function points(trace, key) {
    if (trace.points) return trace.points[key];
    return data.x[key] && { x: data.x[key], y: trace.y };
  }

  // The curves of a figure against an axis; a band is two more curves without names.
  function traces(figure, key, off) {
    const out = [];
    figure.traces.forEach((trace, i) => {
      const found = points(trace, key);
      if (!found || off.has(i)) return;
      const tone = colour(trace.colour);
      if (found.low) {
        const edge = { x: found.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
        out.push({ ...edge, y: found.low });
        out.push({ ...edge, y: found.high, fill: "tonexty", fillcolor: faded(tone, 0.2) });
      }
      const one = found.y.filter((value) => value !== null).length === 1;
      const line = {
        x: found.x, y: found.y, name: trace.name, mode: one ? "markers" : "lines", connectgaps: !figure.gaps,
        line: { color: tone, width: figure.small ? 1.4 : 1.8, dash: dash(trace.colour) },
        hovertemplate: figure.traces.length > 1 ? `%{y:.4~g}<extra>%{fullData.name}</extra>` : "%{y:.4~g}<extra></extra>",
      };
      if (figure.stacked) Object.assign(line, { stackgroup: "all", fillcolor: faded(tone, 0.5), connectgaps: false });
      out.push(line);
    });
    return out;
  }

  function layout(figure, key) {
    const title = data.axes.find(([name]) => name === key)[1];
    const text = style("--soft"), line = style("--line");
    const common = {
      gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, tickfont: { size: 11 }, fixedrange: coarse(),
    };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, family: "inherit", size: 12 },
      margin: { l: 46, r: 12, t: 8, b: figure.small ? 34 : 44 },
      showlegend: false, hovermode: figure.traces.length > 8 ? "closest" : "x unified",
      hoverlabel: { bgcolor: style("--panel"), bordercolor: line, font: { color: style("--text"), size: 12 } },
      dragmode: coarse() ? false : "zoom",
      xaxis: { ...common, title: { text: title, font: { size: figure.small ? 11 : 12 }, standoff: 6 }, nticks: figure.small ? 5 : 0 },
      yaxis: { ...common, rangemode: figure.zero ? "tozero" : "normal", nticks: figure.small ? 5 : 0, ...(figure.stacked ? { range: [0, 100] } : {}) },
    };
  }

  const coarse = () => matchMedia("(pointer: coarse)").matches;

  function draw(element) {
    const number = Number(element.dataset.figure), figure = data.figures[number];
    const off = hidden.get(number) || new Set();
    const config = { displayModeBar: false, responsive: true, displaylogo: false };
    drawn.set(element, true);
    Plotly.react(element.querySelector(".canvas"), traces(figure, axis.value, off), layout(figure, axis.value), config);
  }

  function legend(element) {
    const box = element.querySelector(".legend");
    if (!box) return;
    const number = Number(element.dataset.figure);
    const off = hidden.get(number) || new Set();
    hidden.set(number, off);
    box.replaceChildren(...data.figures[number].traces.map((trace, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!off.has(i)));
      const pattern = { solid: "", dash: ' stroke-dasharray="6 3"', dot: ' stroke-dasharray="2 3"' }[dash(trace.colour)];
      button.innerHTML = `<svg width="20" height="4" aria-hidden="true"><path d="M0 2H20" stroke="${colour(trace.colour)}" stroke-width="3"${pattern}/></svg>`;
      button.append(trace.name);
      button.addEventListener("click", () => {
        off.has(i) ? off.delete(i) : off.add(i);
        button.setAttribute("aria-pressed", String(!off.has(i)));
        draw(element);
      });
      return button;
    }));
  }

  function swatches() {
    for (const swatch of document.querySelectorAll(".swatch")) swatch.style.background = colour(Number(swatch.dataset.colour));
  }

  const plots = [...document.querySelectorAll(".plot")];
  if (axis) {
    // Only what comes into view is drawn: a run has some sixty curves.
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "300px" });
    for (const element of plots) {
      legend(element);
      seen.observe(element);
    }
    const again = () => { for (const element of drawn.keys()) draw(element); };
    axis.addEventListener("change", again);
    dark.addEventListener("change", () => { swatches(); plots.forEach(legend); again(); });
    addEventListener("beforeprint", () => plots.filter((element) => element.offsetParent).forEach(draw));
  }
  swatches();

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...document.querySelectorAll("main section")];
  function mark() {
    const top = sections.filter((section) => section.getBoundingClientRect().top < innerHeight / 3).pop() || sections[0];
    for (const [id, link] of links) {
      const here = Boolean(top) && id === top.id;
      if (here && !link.classList.contains("here")) {
        const list = link.closest("ul"), place = link.offsetLeft - list.offsetLeft;
        if (place < list.scrollLeft || place + link.offsetWidth > list.scrollLeft + list.clientWidth) list.scrollLeft = place - 20;
      }
      link.classList.toggle("here", here);
    }
  }
  addEventListener("scroll", mark, { passive: true });
  mark();
})();
