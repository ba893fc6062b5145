// Looks at the page as it is laid out; its value is a list of what is wrong. WIDTH and THEME are put in by the test.
(async () => {
  const wrong = [];
  const root = document.documentElement;
  const main = document.querySelector("main") ?? document.body;
  main.querySelectorAll("details").forEach((details) => (details.open = true));
  await document.fonts.ready;

  if (root.id !== "" || !root.classList.contains("THEME")) {
    if (document.querySelector("main")) wrong.push(`theme ${root.className}, wanted THEME`);
  }
  document.fonts.forEach((font) => {
    if (font.status === "error") wrong.push(`font ${font.family} did not load`);
  });
  for (const image of document.images) {
    if (!image.complete || image.naturalWidth === 0) wrong.push(`image ${image.src} did not load`);
  }
  for (const formula of main.querySelectorAll(".katex")) {
    const { width, height } = formula.getBoundingClientRect();
    if (width === 0 || height === 0) wrong.push(`invisible formula ${formula.textContent.slice(0, 40)}`);
  }

  const name = (e) => `<${e.localName} class="${e.getAttribute("class") ?? ""}"> ${e.textContent.trim().slice(0, 40)}`;
  for (const box of [root, document.body, document.querySelector(".content")]) {
    if (box && box.scrollWidth > Math.min(box.clientWidth, WIDTH)) wrong.push(`scrolls sideways: ${box.localName} ${box.className}`);
  }
  const scrolls = (e) => e !== main && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  for (const e of main.querySelectorAll("*")) {
    const { right, width } = e.getBoundingClientRect();
    if (width > 0 && right > WIDTH + 1 && !scrolls(e.parentElement)) wrong.push(`sticks out by ${right - WIDTH}: ${name(e)}`);
  }

  // The contrast of every piece of text with what lies behind it, as WCAG 2 defines it.
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (color, below) => {
    pixel.fillStyle = `rgb(${below.join(" ")})`;
    pixel.fillRect(0, 0, 1, 1);
    pixel.fillStyle = color;
    pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const behind = (e) => (e ? over(getComputedStyle(e).backgroundColor, behind(e.parentElement)) : [255, 255, 255]);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || seen.has(e) || e.closest("title, script, style, .katex-mathml, .buttons")) continue;
    seen.add(e);
    const style = getComputedStyle(e);
    const below = behind(e);
    const text = over(e.closest("svg") ? style.fill : style.color, below);
    const [dark, light] = [luminance(text), luminance(below)].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(1)} of rgb(${text}) on rgb(${below}): ${name(e)}`);
  }
  return wrong;
})();
