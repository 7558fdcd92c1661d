"""Make the README picture of a report: `python docs/report_picture.py artifacts/NAME/report.html`.

Needs Chromium (or Chrome) on the PATH, or its place in CHROMIUM.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "report.png"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_MOST_BYTES = 200_000


def main() -> None:
    """Draw the top of the page, with few colours so that the file stays small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=PICTURE)
    parser.add_argument("--size", default="1560,1180", help="width,height in pixels")
    given = parser.parse_args()
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        sys.exit(f"found none of {', '.join(_NAMES)}: install one, or name it in CHROMIUM")
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "page.png"
        subprocess.run(
            [
                *(
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--hide-scrollbars",
                    f"--window-size={given.size}",
                ),
                *(f"--screenshot={drawn}", f"--user-data-dir={folder}/profile"),
                given.report.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        _save_small(drawn, given.out)
    size = given.out.stat().st_size
    if size > _MOST_BYTES:
        sys.exit(f"{given.out} has {size} bytes, wanted {_MOST_BYTES} at most: a smaller --size")


def _save_small(drawn: Path, out: Path) -> None:
    from PIL import Image

    out.parent.mkdir(exist_ok=True)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(64).save(out, optimize=True)


if __name__ == "__main__":
    main()
