"""Draw the README's picture, docs/flash_against_naive.png, from what was measured on an H200."""

from pathlib import Path

from flashedu.results import load
from flashedu.viz.curves import naive_against_flash

if __name__ == "__main__":
    target = Path(__file__).resolve().parents[1] / "docs" / "flash_against_naive.png"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(naive_against_flash(load("h200_attention_traffic")).png)
