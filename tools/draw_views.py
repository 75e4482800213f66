#!/usr/bin/env python3
"""Draws what a page of the viewer shows, as SVG, by a headless Chromium.

Usage: draw_views.py PAGE LINK SVG [WIDTH]
LINK is what stands behind # in the page's address, such as "view=map&layer=1&head=3"."""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/python"))
import chromium  # noqa: E402


def main() -> int:
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        return 2
    page, link, target = sys.argv[1:4]
    with chromium.Chromium(width=int(sys.argv[4]) if len(sys.argv) > 4 else 1000) as browser:
        browser.prefer("light")
        browser.go(page, link)
        drawn = browser.run("svgText()")
        if browser.errors:
            print(*browser.errors, sep="\n", file=sys.stderr)
            return 1
    pathlib.Path(target).write_text(drawn + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
