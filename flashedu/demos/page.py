"""The page that `Demo.to_html` writes: its frames, and a few lines that show the one that the sliders ask for."""
from string import Template

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
  :root { color-scheme: light dark; --flashedu-width: min(96vw, max(640px, 120vh)); }
  body { font: max(16px, var(--flashedu-width) * 17 / 960) sans-serif; margin: .6em auto; width: var(--flashedu-width); background: #fff; color: #222; }
  p { margin: 0 0 .6em; }
  label { display: inline-block; margin: 0 2em .6em 0; }
  input { width: 22em; vertical-align: middle; accent-color: #0072b2; }
  @media (prefers-color-scheme: dark) {
    :root { --jp-ui-font-color1: #ddd; --jp-layout-color0: #111; --jp-border-color1: #555; }
    body { background: #111; color: #ddd; }
  }
</style>
</head>
<body>
<div id="controls"></div>
<p>$kept</p>
<div id="picture"></div>
<script type="application/json" id="data">$data</script>
<script>
  const { controls, frames } = JSON.parse(document.getElementById("data").textContent);
  const picture = document.getElementById("picture");
  const inputs = controls.map(({ label, options, start }, place) => {
    const line = document.getElementById("controls").appendChild(document.createElement("label"));
    const input = document.createElement("input"), value = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: options.length - 1, step: 1, value: start, autofocus: place === 0 });
    line.append(label + " ", input, " ", value);
    input.addEventListener("input", show);
    return { input, value, options };
  });
  function show() {
    let frame = 0;
    for (const { input, value, options } of inputs) {
      frame = frame * options.length + Number(input.value);
      value.textContent = options[input.value];
      input.setAttribute("aria-valuetext", options[input.value]);
    }
    picture.innerHTML = frames[frame];
  }
  show();
</script>
</body>
</html>
""")
