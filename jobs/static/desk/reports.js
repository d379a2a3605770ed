"use strict";
// Draws the plots of the reports with uPlot. All words and numbers come written from the server; the tables behind the plots
// hold the same figures, so that nothing is lost without this file.
{
  const rtl = document.documentElement.dir === "rtl";
  const page = document.querySelector(".reports");
  const HEIGHT = 240;
  const drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const inkOf = (tone) => colour(tone === "outline" ? "--ink-3" : `--${tone}-ink`);
  const softOf = (tone) => colour(tone === "outline" ? "--panel" : `--${tone}-soft`);

  // --- patterns and marks: what tells series apart where colours don't -------------------------------------------------

  // 0 full; 1 falling, 2 rising and falling, 3 dots, 4 level, 5 upright lines.
  function fillOf(context, one) {
    if (one.pattern === 0) return inkOf(one.tone);
    const tile = document.createElement("canvas");
    const ratio = Math.max(1, Math.round(devicePixelRatio || 1));
    const size = 6 * ratio;
    tile.width = tile.height = size;
    const on = tile.getContext("2d");
    on.fillStyle = softOf(one.tone);
    on.fillRect(0, 0, size, size);
    on.strokeStyle = on.fillStyle = inkOf(one.tone);
    on.lineWidth = 1.25 * ratio;
    on.beginPath();
    const line = (x, y, toX, toY) => {
      on.moveTo(x * size, y * size);
      on.lineTo(toX * size, toY * size);
    };
    const kind = one.pattern % 6;
    if (kind === 1 || kind === 2) {
      line(-0.5, 0.5, 0.5, 1.5);
      line(-0.5, -0.5, 1.5, 1.5);
      line(0.5, -0.5, 1.5, 0.5);
    }
    if (kind === 2) {
      line(-0.5, 0.5, 0.5, -0.5);
      line(-0.5, 1.5, 1.5, -0.5);
      line(0.5, 1.5, 1.5, 0.5);
    }
    if (kind === 3) {
      on.arc(size / 2, size / 2, size / 4, 0, 2 * Math.PI);
      on.fill();
    }
    if (kind === 4) line(0, 0.5, 1, 0.5);
    if (kind === 5 || kind === 0) line(0.5, 0, 0.5, 1);
    if (kind !== 3) on.stroke();
    return context.createPattern(tile, "repeat");
  }

  // A circle, a square, a triangle or a diamond; hollow for dashed lines.
  function mark(context, one, x, y, size) {
    context.beginPath();
    if (one.mark === 0) context.arc(x, y, size, 0, 2 * Math.PI);
    else {
      const corners = [
        [[-1, -1], [1, -1], [1, 1], [-1, 1]],
        [[0, -1.2], [1.2, 1], [-1.2, 1]],
        [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]],
      ][(one.mark - 1) % 3];
      corners.forEach(([dx, dy], n) => context[n ? "lineTo" : "moveTo"](x + dx * size * 0.9, y + dy * size * 0.9));
      context.closePath();
    }
    context.strokeStyle = inkOf(one.tone);
    context.fillStyle = one.dashed ? colour("--panel") : inkOf(one.tone);
    context.lineWidth = size / 2;
    context.setLineDash([]);
    context.fill();
    context.stroke();
  }

  function swatch(canvas, data, one) {
    const ratio = devicePixelRatio || 1;
    canvas.width = 18 * ratio;
    canvas.height = 12 * ratio;
    const on = canvas.getContext("2d");
    if (data.kind === "stack") {
      on.fillStyle = fillOf(on, one);
      on.fillRect(0, 0, canvas.width, canvas.height);
      on.strokeStyle = inkOf(one.tone);
      on.lineWidth = 2 * ratio;
      on.strokeRect(0, 0, canvas.width, canvas.height);
      return;
    }
    on.strokeStyle = inkOf(one.tone);
    on.lineWidth = 2 * ratio;
    on.setLineDash(one.dashed ? [4 * ratio, 3 * ratio] : []);
    on.beginPath();
    on.moveTo(0, canvas.height / 2);
    on.lineTo(canvas.width, canvas.height / 2);
    on.stroke();
    on.setLineDash([]);
    mark(on, one, canvas.width / 2, canvas.height / 2, 3 * ratio);
  }

  // --- drawing ---------------------------------------------------------------------------------------------------------

  function stackOn(plot, data) {
    const on = plot.ctx;
    const bars = data.names.length;
    const heights = new Array(bars).fill(0);
    on.save();
    on.beginPath();
    on.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    on.clip();
    const ratio = devicePixelRatio || 1;
    data.series.forEach((one) => {
      on.fillStyle = fillOf(on, one);
      on.strokeStyle = inkOf(one.tone);
      on.lineWidth = ratio;
      one.values.forEach((value, n) => {
        if (!value) return;
        const ends = [plot.valToPos(n - 0.5, "x", true), plot.valToPos(n + 0.5, "x", true)];
        const gap = Math.min(2 * ratio, Math.abs(ends[1] - ends[0]) * 0.2);
        const left = Math.round(Math.min(...ends) + gap / 2);
        const right = Math.round(Math.max(...ends) - gap / 2);
        const foot = Math.round(plot.valToPos(heights[n], "y", true));
        heights[n] += value;
        // What there is at all stays visible.
        const top = Math.min(foot - ratio, Math.round(plot.valToPos(heights[n], "y", true)));
        on.fillRect(left, top, right - left, foot - top);
        if (one.pattern && right - left > 4 * ratio && foot - top > 2 * ratio) {
          on.strokeRect(left + ratio / 2, top + ratio / 2, right - left - ratio, foot - top - ratio);
        }
      });
    });
    on.restore();
  }

  function marksOn(plot, data) {
    // As large as the bars leave room for.
    const size = Math.min(2.75 * (devicePixelRatio || 1), (plot.bbox.width / data.names.length) * 0.28);
    data.series.forEach((one) => {
      one.values.forEach((value, n) => {
        if (value !== null) mark(plot.ctx, one, plot.valToPos(n, "x", true), plot.valToPos(value, "y", true), size);
      });
    });
  }

  function told(data, n) {
    const lines = data.series
      .map((one, number) => ({ number, one, words: one.shown[n], none: !one.values[n] }))
      .filter((line) => !line.none);
    if (data.kind === "stack") lines.reverse();
    return lines;
  }

  function tooltip(plot, box, data, id) {
    const n = plot.cursor.idx;
    const at = plot.cursor.left;
    if (n === null || n === undefined || at < 0) {
      box.hidden = true;
      return;
    }
    box.replaceChildren();
    const title = document.createElement("strong");
    title.textContent = data.names[n];
    box.append(title);
    const lines = told(data, n);
    if (!lines.length) lines.push({ words: "—" });
    lines.forEach((line) => {
      const row = document.createElement("span");
      row.className = "plot-tip-row";
      if (line.one) {
        const key = document.createElement("canvas");
        key.className = "plot-swatch";
        swatch(key, data, line.one);
        const name = document.createElement("bdi");
        name.textContent = line.one.name;
        row.append(key, name);
      }
      row.append(number(line.words));
      box.append(row);
    });
    if (data.total && lines.length > 1) {
      const row = document.createElement("span");
      row.className = "plot-tip-row plot-tip-total";
      const name = document.createElement("bdi");
      name.textContent = data.total.name;
      row.append(name, number(data.total.shown[n]));
      box.append(row);
    }
    box.hidden = false;
    const width = plot.over.clientWidth;
    const x = at + 14 + box.offsetWidth > width ? Math.max(0, at - 14 - box.offsetWidth) : at + 14;
    box.style.transform = `translate(${Math.round(x)}px, 8px)`;
  }

  function number(words) {
    const value = document.createElement("bdi");
    value.className = "plot-tip-value num";
    value.textContent = words;
    return value;
  }

  function draw(place) {
    const data = JSON.parse(document.getElementById(place.dataset.plot).textContent);
    const bars = data.names.length;
    const ticks = new Map(data.ticks);
    const lines = new Map(data.y.ticks);
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const measure = document.createElement("canvas").getContext("2d");
    measure.font = font;
    const widest = (words) => Math.max(0, ...words.map((word) => measure.measureText(word).width));
    const gutter = Math.ceil(widest([...lines.values()])) + 18;
    const tickWidth = widest([...ticks.values()]) + 20;
    place.replaceChildren();
    const box = document.createElement("div");
    box.className = "plot-tip";
    box.hidden = true;

    const shownTicks = (plot) => {
      const all = [...ticks.keys()];
      const every = Math.max(1, Math.ceil((all.length * tickWidth) / Math.max(1, plot.width - gutter)));
      return all.filter((_tick, n) => n % every === 0);
    };
    const axis = {
      font, stroke: () => colour("--ink-3"), ticks: { show: false }, border: { show: false },
    };
    const options = {
      width: Math.max(200, place.clientWidth), height: HEIGHT,
      legend: { show: false }, padding: [12, rtl ? 4 : 12, 0, rtl ? 12 : 4],
      scales: {
        x: { time: false, range: () => [-0.5, bars - 0.5], dir: rtl ? -1 : 1 },
        y: { range: () => [0, data.y.max] },
      },
      axes: [
        { ...axis, splits: shownTicks, values: (_plot, splits) => splits.map((n) => ticks.get(n)), grid: { show: false }, size: 24, gap: 6 },
        {
          ...axis, side: rtl ? 1 : 3, splits: () => [...lines.keys()], values: (_plot, splits) => splits.map((y) => lines.get(y)),
          grid: { stroke: () => colour("--line"), width: 1 }, size: gutter, gap: 6,
        },
      ],
      series: [{}, ...data.series.map((one) =>
        data.kind === "stack"
          ? { paths: () => null, points: { show: false } }
          : { stroke: () => inkOf(one.tone), width: 2, dash: one.dashed ? [5, 4] : undefined, points: { show: false } })],
      cursor: {
        y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
        // The pointer takes the nearest bar, and what it says stands still while it stays there.
        move: (plot, left, top) => {
          if (left < 0) return [left, top];
          const n = Math.min(bars - 1, Math.max(0, Math.round(plot.posToVal(left, "x"))));
          return [plot.valToPos(n, "x"), top];
        },
      },
      hooks: {
        draw: [(plot) => (data.kind === "stack" ? stackOn : marksOn)(plot, data)],
        setCursor: [(plot) => tooltip(plot, box, data, place.id)],
        setSelect: [(plot) => zoom(plot, data)],
      },
    };
    const plot = new uPlot(options, [data.names.map((_name, n) => n), ...data.series.map((one) => one.values)], place);
    plot.over.append(box);
    keys(place, plot, data);
    new ResizeObserver(() => {
      const width = Math.max(200, place.clientWidth);
      if (width !== plot.width) plot.setSize({ width, height: HEIGHT });
    }).observe(place);
    document.querySelectorAll(`.plot-swatch[data-plot="${place.id}"]`).forEach((holder) => {
      const canvas = document.createElement("canvas");
      holder.replaceChildren(canvas);
      drawn.push(() => swatch(canvas, data, data.series[Number(holder.dataset.series)]));
    });
    drawn.push(() => plot.redraw(false, true));
  }

  // Drawn over with the pointer: that part becomes the period.
  function zoom(plot, data) {
    const { left, width } = plot.select;
    if (width < 8 || !page.dataset.zoom) return;
    const ends = [left, left + width].map((x) => Math.round(plot.posToVal(x, "x"))).sort((a, b) => a - b);
    const first = Math.max(0, ends[0]);
    const last = Math.min(data.names.length - 1, ends[1]);
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (last <= first) return;
    location.assign(page.dataset.zoom
      .replace("from=FROM", `from=${encodeURIComponent(data.edges[first])}`)
      .replace("to=TO", `to=${encodeURIComponent(data.edges[last + 1])}`));
  }

  // As a slider over the bars: the arrow keys go from one to the next, and its value is read out.
  function keys(place, plot, data) {
    const last = data.names.length - 1;
    let at = last;
    const tell = () => {
      const lines = told(data, at).map((line) => `${line.one.name} ${line.words}`);
      place.setAttribute("aria-valuenow", String(at));
      place.setAttribute("aria-valuetext", `${data.names[at]}: ${lines.join(", ") || "—"}`);
    };
    const show = () => plot.setCursor({ left: plot.valToPos(at, "x"), top: 8 });
    place.tabIndex = 0;
    place.setAttribute("role", "slider");
    place.setAttribute("aria-label", place.dataset.label);
    place.setAttribute("aria-valuemin", "0");
    place.setAttribute("aria-valuemax", String(last));
    tell();
    place.addEventListener("keydown", (event) => {
      const back = rtl ? "ArrowRight" : "ArrowLeft";
      const on = rtl ? "ArrowLeft" : "ArrowRight";
      const to = { [back]: at - 1, [on]: at + 1, Home: 0, End: last, PageUp: at + 10, PageDown: at - 10 }[event.key];
      if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 });
      if (to === undefined) return;
      event.preventDefault();
      at = Math.min(last, Math.max(0, to));
      tell();
      show();
    });
    place.addEventListener("focus", () => {
      if (place.matches(":focus-visible")) show();
    });
    place.addEventListener("blur", () => plot.setCursor({ left: -10, top: -10 }));
  }

  const again = () => drawn.forEach((one) => one());

  document.fonts.ready.then(() => {
    document.querySelectorAll(".plot").forEach(draw);
    again();
    new MutationObserver(again).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  });
}
